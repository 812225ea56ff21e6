"""The detail's tokens and raw messages."""

import math
from collections import Counter

import pytest

from seqtop.sequence import Logprob, RequestMetrics, SamplingParams
from seqtop.state.model import RequestState, SequenceState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.screens.sequences.summary import headline
from seqtop.tui.screens.sequences.table import Rows
from seqtop.tui.screens.sequences.text_pane import TextPane
from seqtop.tui.settings import SavedState
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play, screen, words
from tests.support.scripted import Script, ScriptedSource

FOX = {7: Logprob(math.log(0.25), 2, " fox"), 8: Logprob(math.log(0.5), 1, " owl")}


def test_headline_tells_of_drafts_where_there_are_any() -> None:
    request = RequestState("a", RequestMetrics(1.0, 1.0, None, None, None), [1])
    sequence = SequenceState(1, "a")
    assert "drafted" not in plain(headline(request, sequence, 120))
    sequence.num_draft_tokens, sequence.num_accepted_tokens = 1_200, 0
    assert "0 of 1,200 drafted" in plain(headline(request, sequence, 120))


def test_headline_has_the_part_of_drafts_accepted_up_to_each_position() -> None:
    metrics = RequestMetrics(1.0, 1.0, None, None, None, spec_token_acceptance_counts=[50, 40, 11])
    request, sequence = RequestState("a", metrics, [1]), SequenceState(1, "a")
    assert "by position 80% 22%" in plain(headline(request, sequence, 120))
    metrics.spec_token_acceptance_counts = [50, 0, 0]  # no drafts
    assert "position" not in plain(headline(request, sequence, 120))
    metrics.spec_token_acceptance_counts = [1] * 1_000_000
    assert plain(headline(request, sequence, 500)).count("100%") == 8


def test_headline_has_the_parameters_that_differ_from_the_defaults() -> None:
    params = SamplingParams(max_tokens=20, temperature=0.5)
    request = RequestState("a", RequestMetrics(1.0, 1.0, None, None, None), [1])
    request.sampling_params, sequence = params, SequenceState(1, "a")
    before = plain(headline(request, sequence, 300)).split()
    assert before[-4:] == ["20", "tokens", "temperature", "0.5"]
    params.top_p, params.top_k, params.seed, params.n = 0.9, 40, 123_456_789, 2
    params.ignore_eos, params.stop, params.logit_bias = True, ["a", "b"], {5: -1.0}
    params.presence_penalty, params.min_tokens = -0.25, 3
    found = plain(headline(request, sequence, 300)).split()[len(before) :]
    assert " ".join(found) == (
        "n 2 top_p 0.9 top_k 40 seed 123456789 presence_penalty -0.25 min_tokens 3 ignore_eos"
        " stop: 2 logit_bias: 1"
    )
    assert "temperature 0.5" in plain(headline(request, sequence, 100))  # which comes first


def test_detail(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        detail = app.screen.query_one(Detail)
        for key in ("O", "o", "plus", "minus"):
            assert not detail.display
            pilot.press(key)
            assert detail.display, key
            pilot.press("escape")  # clears, and hides nothing
            assert detail.display, key
            pilot.press("d")
        pilot.press("enter")
        assert detail.display
        pilot.press("enter")
        assert detail.display
        pilot.press("d")
        assert not detail.display
        pilot.press("d")
        assert "Once upon a time" in screen(app)
        pilot.press("o")
        assert "slots filled" in screen(app)
        pilot.press("o")
        assert "TTFT 68.0 ms" in screen(app)
        pilot.press("o")
        assert "logprob" in screen(app)
        pilot.press("o")
        assert "TTFT" in screen(app)
        pilot.press("o")
        assert "The next step advances" in screen(app)
        pilot.press("o")
        assert "Update of step 40" in screen(app)
        pilot.press("o")
        assert "Once upon a time" in screen(app)
        pilot.press(*["O"] * 4)
        assert "logprob" in screen(app)
        pilot.press("d")
        assert not detail.display


def test_the_detail_scrolls_once_it_has_the_focus(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("enter", "tab")
        assert isinstance(app.focused, TextPane)
        pilot.press("shift+tab")
        assert isinstance(app.focused, Rows)
        pilot.press(*["down"] * 8)  # the preempted one, of which there is much to say
        assert "3 more blocks needed. Waited" in words(app)


@pytest.mark.parametrize(("size", "side"), [((100, 40), "height"), ((200, 40), "width")])
def test_the_detail_pane_has_the_size_one_likes(
    source: ScriptedSource, tmp_path: object, size: tuple[int, int], side: str
) -> None:
    memory = SavedState(tmp_path / "remembered.json")  # type: ignore[operator]
    app = SeqtopApp(source, saved_state=memory)
    with play(app, size) as pilot:
        detail = app.screen.query_one(Detail)

        def extent() -> int:
            return int(getattr(detail.outer_size, side))

        before = extent()
        pilot.press(*["plus", "equals_sign"] * 2)
        larger = extent()
        assert larger > before
        pilot.press(*["minus"] * 20)
        assert extent() < larger
        assert memory.settings.detail_share == 20
        pilot.press("d", "plus")
        assert memory.settings.detail_share == 20


@pytest.mark.parametrize("size", [(160, 40), (160, 50), (200, 60)])
def test_parts_are_as_high_as_their_content_and_shrink_with_another_sequence(
    size: tuple[int, int],
) -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=400)
    script.arrive("long", num_prompt=4_000)
    script.arrive("short", num_prompt=20)
    script.step(prefill={"long": 4_000})
    script.step(prefill={"short": 20})
    app = SeqtopApp(source)
    with play(app, size) as pilot:
        pane = app.screen.query_one(Detail)
        parts = {part.id: part for part in pane.query(LineView) if part.display and part.id}
        blocks, timeline, text = (parts[name] for name in ("blocks", "timeline", "text"))

        def full() -> bool:
            return blocks.size.height == blocks.virtual_size.height

        app.ui.select(app.ui.state.requests["long"].seq_ids[0])
        pilot.draw()
        assert not full()  # 250 blocks
        assert 0 <= text.outer_size.height - blocks.outer_size.height <= 1
        assert all(pane.region.contains_region(part.region) for part in parts.values())
        assert timeline.size.height == timeline.virtual_size.height
        for name in ("short", "long", "short"):
            pilot.press("down" if name == "short" else "up")
            assert app.ui.selection
            assert app.ui.selection[0].request_id == name
            assert full() == (name == "short")
        height = blocks.size.height
        script.step(preempt={"short": "long"})
        pilot.draw()
        assert "It holds no blocks" in screen(app)
        assert blocks.size.height == height > 1
        pilot.press("up", "down")
        assert blocks.size.height == 1


@pytest.mark.parametrize("size", [(100, 40), (160, 50)])
def test_a_group_shows_who_holds_its_blocks(size: tuple[int, int]) -> None:
    source = ScriptedSource()
    script = Script(source)
    for number, num_prompt in enumerate((16, 160, 1_600)):
        script.arrive(f"chat-{number}", num_prompt=num_prompt)
        script.step(prefill={f"chat-{number}": num_prompt})
    script.arrive("late-1")
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, size) as pilot:
        assert "Most blocks" not in screen(app)
        pilot.press("G", "enter")
        assert "Enter unfolds a group, Esc ends the groups." in screen(app)
        assert "Most blocks" in screen(app)
        first = words(app).split("Most blocks")[1].split()
        names = [word for word in first if word.startswith("chat-")]
        assert names == ["chat-2", "chat-1", "chat-0"]
        assert first[first.index("chat-2") :][:4] == ["chat-2", "●", "running", "100"]
        assert "chat-2 ● running 100 " in words(app)
        script.step(preempt={"chat-2": "chat-1"})
        pilot.draw()
        assert "chat-2 ● running" not in words(app)
        assert "chat-1 ● running" in words(app)
        pilot.press("down")
        assert "None of its sequences holds blocks." in screen(app)
        assert "Timeline" not in screen(app).split("Most blocks")[1]
        pilot.press("escape")
        assert "Most blocks" not in screen(app)
        assert "Tell me a story about a fox." in screen(app)
        assert ("slots filled" in screen(app)) == (size == (160, 50))  # in a part of its own


def test_a_selection_that_is_on_show_is_not_drawn_again(lines: Counter[LineView]) -> None:
    _, app = crowd(30)
    with play(app, (160, 50)) as pilot:
        pilot.press("down")
        drawn(app, pilot, lines)
        parts = [*app.screen.query_one(Detail).query(LineView)]
        before = sum(lines[part] for part in parts)
        rows = app.screen.query_one(Rows)
        rows.post_message(Rows.Moved())
        drawn(app, pilot, lines)
        after = sum(lines[part] for part in parts)
        assert after == before
