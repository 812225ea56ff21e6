"""Marks between tokens, and of unlikely tokens, in a text."""

from hypothesis import given
from hypothesis import strategies as st

from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import line_width, plain
from seqtop.tui.screens.sequences.token_marks import TokenMarks
from seqtop.tui.screens.sequences.transcript import Transcript
from seqtop.tui.settings import Marking
from tests.support.piloting import play, rows, screen
from tests.support.scripted import Script, ScriptedSource

WIDTHS = st.integers(2, 30)


def test_tokens_tell_their_text_and_the_text_its_tokens() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("a", pieces=["Once", "", " upon", " a"])
    script.step(prefill={"a": 40})
    for _ in range(3):
        script.step()
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 40)) as pilot:
        pilot.press("enter", "i")
        assert "│Once│ upon│ a" in screen(app)
        script.step()
        pilot.draw()
        assert "│Once│ upon│ a│Once" in screen(app)
        pilot.press("i")
        assert app.ui.preferences.marking == "likelihood"
        assert "Once upon aOnce" in screen(app)
        pilot.press("i", *["o"] * 3)
        assert app.ui.preferences.marking == "plain"
        lines = [line.split()[:3] for line in rows(app)]
        assert ["3", "4", "a"] in lines
        assert ["2", "3", "upon"] in lines
        assert ["1", "2", fmt.UNKNOWN] in lines


def test_tokens_are_told_apart_by_borders() -> None:
    flow = Transcript()
    flow.update("Once", " upon", 0, 30, TokenMarks("borders", [5], []))
    flow.update("Once", " upon a", 2, 30, TokenMarks("borders", [5, 0, 2], []))
    edge = ("│", "track")
    assert flow.lines == [(("Once", "dim"), edge, (" upon", ""), edge, (" a", "delta"))]
    flow.update("Once", " upon a time", 5, 30, TokenMarks("borders", [5, 0, 2, -1, 5], []))
    assert plain(flow.lines[0]) == "Once│ upon│ a│ time"
    flow.update("Once", " upon a time", 5, 30)
    assert plain(flow.lines[0]) == "Once upon a time"


def test_unlikely_tokens_look_different_and_what_is_new_does_not() -> None:
    flow = Transcript()
    logprobs = [-0.1, -0.8, -3.0, -0.1]
    flow.update("Once", " upon", 5, 30, TokenMarks("likelihood", [5], logprobs))
    flow.update("Once", " upon a", 2, 30, TokenMarks("likelihood", [5, 2, 0], logprobs))
    assert flow.lines == [(("Once", "dim"), (" upon", ""), (" a", "unsure"))]
    # The third token's text comes with the fourth's: it is as unlikely as the less likely one.
    flow.update("Once", " upon a é", 2, 30, TokenMarks("likelihood", [5, 2, 0, 2], logprobs))
    assert flow.lines[0][2:] == ((" a", "unsure"), (" é", "unlikely"))


@given(
    st.text(),
    st.lists(st.text(), max_size=6),
    st.lists(st.integers(-3, 9), max_size=9),
    st.lists(st.floats(), max_size=9),
    st.sampled_from(["borders", "likelihood"]),
    WIDTHS,
)
def test_any_marks_leave_the_text_whole(
    prompt: str,
    deltas: list[str],
    lengths: list[int],
    logprobs: list[float],
    marking: Marking,
    width: int,
) -> None:
    grown, output = Transcript(), ""
    for count, delta in enumerate(deltas, 1):
        output += delta
        grown.update(
            prompt, output, len(delta), width, TokenMarks(marking, lengths[: 2 * count], logprobs)
        )
        plainly = Transcript()
        plainly.update(prompt, output, 0, 10_000)
        text = "".join(plain(line) for line in grown.lines).replace("│", "").replace(" ", "")
        assert text == "".join(map(plain, plainly.lines)).replace("│", "").replace(" ", "")
        assert all(line_width(line) <= width for line in grown.lines)
