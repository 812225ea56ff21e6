"""The detail's tokens and raw messages."""

import asyncio
import math
from collections import Counter

import pytest
from textual.pilot import Pilot

from seqtop.sequence import Logprob, RequestMetrics
from seqtop.state.model import RequestState, SequenceState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.sequences.detail import Detail, headline
from seqtop.tui.screens.sequences.table import Rows
from seqtop.tui.screens.sequences.text_pane import TextPane
from seqtop.tui.settings import SavedState
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource

FOX = {7: Logprob(math.log(0.25), 2, " fox"), 8: Logprob(math.log(0.5), 1, " owl")}


def test_headline_tells_of_drafts_where_there_are_any() -> None:
    request = RequestState("a", RequestMetrics(1.0, 1.0, None, None, None), [1])
    sequence = SequenceState(1, "a")
    assert "drafted" not in plain(headline(request, sequence, 120))
    sequence.num_draft_tokens, sequence.num_accepted_tokens = 1_200, 0
    assert "0 of 1,200 drafted" in plain(headline(request, sequence, 120))


def test_detail(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        detail = app.screen.query_one(Detail)
        for key in ("left_square_bracket", "right_square_bracket", "plus", "minus"):
            assert not detail.display
            await pilot.press(key)
            assert detail.display, key
            await pilot.press("escape")
        await pilot.press("enter")
        assert detail.display
        await pilot.press("enter")
        assert detail.display
        await pilot.press("d")
        assert not detail.display
        await pilot.press("d")
        await pilot.pause()
        assert "Once upon a time" in screen(app)
        await pilot.press("right_square_bracket")
        assert "slots filled" in screen(app)
        await pilot.press("right_square_bracket")
        assert "TTFT 68.0 ms" in screen(app)
        await pilot.press("right_square_bracket")
        assert "logprob" in screen(app)
        await pilot.press("right_square_bracket")
        assert "TTFT" in screen(app)
        await pilot.press("right_square_bracket")
        assert "Update of step 40" in screen(app)
        await pilot.press("right_square_bracket")
        assert "Once upon a time" in screen(app)
        await pilot.press(*["left_square_bracket"] * 3)
        assert "logprob" in screen(app)
        await pilot.press("escape")
        assert not detail.display

    play(app, act, (80, 24))


def test_the_detail_scrolls_once_it_has_the_focus(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "tab")
        assert isinstance(app.focused, TextPane)
        await pilot.press("shift+tab")
        assert isinstance(app.focused, Rows)
        await pilot.press(*["down"] * 8)  # the preempted one, of which there is much to say
        await pilot.pause()
        assert "3 more blocks needed. Waited …" in screen(app)

    play(app, act, (80, 24))


@pytest.mark.parametrize(("size", "side"), [((100, 40), "height"), ((200, 40), "width")])
def test_the_detail_pane_has_the_size_one_likes(
    source: ScriptedSource, tmp_path: object, size: tuple[int, int], side: str
) -> None:
    memory = SavedState(tmp_path / "remembered.json")  # type: ignore[operator]
    app = SeqtopApp(source, saved_state=memory)

    async def act(pilot: Pilot[int]) -> None:
        detail = app.screen.query_one(Detail)

        def extent() -> int:
            return int(getattr(detail.outer_size, side))

        before = extent()
        await pilot.press(*["plus", "equals_sign"] * 2)
        await pilot.pause()
        larger = extent()
        assert larger > before
        await pilot.press(*["minus"] * 20)
        await pilot.pause()
        assert extent() < larger
        assert memory.settings.detail_share == 20
        await pilot.press("d", "plus")
        assert memory.settings.detail_share == 20

    play(app, act, size)


def test_a_selection_that_is_on_show_is_not_drawn_again(lines: Counter[LineView]) -> None:
    async def run() -> None:
        _, app = crowd(30)
        async with app.run_test(size=(160, 50)) as pilot:
            await pilot.press("down")
            await drawn(app, pilot, lines)
            parts = [*app.screen.query_one(Detail).query(LineView)]
            before = sum(lines[part] for part in parts)
            rows = app.screen.query_one(Rows)
            rows.post_message(Rows.Moved())
            await drawn(app, pilot, lines)
            after = sum(lines[part] for part in parts)
            assert after == before

    asyncio.run(run())
