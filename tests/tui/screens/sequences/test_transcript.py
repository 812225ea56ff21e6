"""Transcripts: a text that grows has the same lines as one that is wrapped as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from seqtop.tui.rendering.style import line_width, plain
from seqtop.tui.screens.sequences.token_marks import Marking, TokenMarks
from seqtop.tui.screens.sequences.transcript import Transcript

WIDTHS = st.integers(2, 30)
TEXTS = st.text(st.sampled_from("ab  昔\né漢👋-"), max_size=80)


@given(TEXTS, st.lists(TEXTS, max_size=8), WIDTHS)
def test_growing_a_flow_is_the_same_as_wrapping_it_anew(
    prompt: str, deltas: list[str], width: int
) -> None:
    grown = Transcript()
    output = ""
    for delta in deltas:
        output += delta
        grown.update(prompt, output, len(delta), width)
        fresh = Transcript()
        fresh.update(prompt, output, len(delta), width)
        assert [plain(line) for line in grown.lines] == [plain(line) for line in fresh.lines]
        if delta:
            assert grown.lines == fresh.lines


def test_inks_tell_prompt_output_and_delta_apart() -> None:
    flow = Transcript()
    flow.update("Once", " upon a", 0, 20)
    flow.update("Once", " upon a time", 5, 20)
    assert flow.lines == [(("Once", "dim"), (" upon a", ""), (" time", "delta"))]
    flow.update("Once", " upon a time", 5, 20)
    assert flow.lines == [(("Once", "dim"), (" upon a", ""), (" time", "delta"))]
    flow.update("Once", " upon a time", 0, 20)
    assert flow.lines == [(("Once", "dim"), (" upon a time", ""))]


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
        told = "".join(plain(line) for line in grown.lines).replace("│", "").replace(" ", "")
        assert told == "".join(map(plain, plainly.lines)).replace("│", "").replace(" ", "")
        assert all(line_width(line) <= width for line in grown.lines)


def test_another_text_width_or_prompt_starts_over() -> None:
    flow = Transcript()
    flow.update("p", "one two three", 0, 20)
    flow.update("p", "one two three", 0, 5)
    assert [plain(line) for line in flow.lines] == ["pone ", "two ", "three"]
    flow.update("p", "other", 0, 20)
    assert [plain(line) for line in flow.lines] == ["pother"]
    flow.update("q", "other", 0, 20)
    assert [plain(line) for line in flow.lines] == ["qother"]


@given(st.text(), st.text(), st.integers(-5, 100), WIDTHS)
def test_any_text_flows(prompt: str, output: str, num_new: int, width: int) -> None:
    flow = Transcript()
    flow.update(prompt, output, num_new, width)
    assert all(line_width(line) <= width for line in flow.lines)
    assert all(plain(line).isprintable() for line in flow.lines)
