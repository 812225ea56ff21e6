"""Transcripts: a text that grows has the same lines as one that is wrapped as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from seqtop.tui.rendering.style import line_width, plain
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
