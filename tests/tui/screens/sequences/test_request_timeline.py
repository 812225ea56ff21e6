"""The timeline of one request."""

import math

from hypothesis import given
from hypothesis import strategies as st

from seqtop.state import RequestState, SequenceState, Span
from seqtop.tui.rendering.style import line_width, plain
from seqtop.tui.screens.sequences.request_timeline import scale, timeline_lines
from tests.support.strategies import REQUESTS, SEQUENCES


@given(REQUESTS, SEQUENCES, st.floats(), st.integers(20, 120), st.booleans())
def test_any_life_is_drawn_in_its_width(
    request: RequestState, sequence: SequenceState, now: float, width: int, is_roomy: bool
) -> None:
    lines = timeline_lines(request, sequence, now, width, is_roomy=is_roomy)
    assert all(plain(line).isprintable() for line in lines)
    assert line_width(lines[0]) == width


def test_a_scale_is_true() -> None:
    spans = [
        Span("queued", 0.0, 2.0),
        Span("prefill", 2.0, 3.0),
        Span("decode", 3.0, 6.0),
        Span("preempted", 6.0, None),
    ]
    assert plain(scale(spans, 0.0, 10.0, 20)) == "░" * 4 + "█" * 2 + "▆" * 6 + "▒" * 8
    assert plain(scale(spans, 0.0, 10.0, 5)) == "░█▆▒▒"
    assert plain(scale(spans, 0.0, math.nan, 5)) == "·····"
    assert plain(scale([], 0.0, 10.0, 5)) == "·····"
