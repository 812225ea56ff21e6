"""The table of tokens."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import Logprob, SequenceStatus
from seqtop.state.model import SequenceState
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import line_width, plain
from seqtop.tui.screens.sequences.tokens import TokenList, sum_of_logprobs, token_line
from seqtop.wire.arrays import Floats, Ints
from tests.support import events
from tests.support.events import update
from tests.support.piloting import play, screen
from tests.support.scripted import CJK, HOSTILE, Script, ScriptedSource


def decoded(source: ScriptedSource, step: int, count: int) -> None:
    """A step in which sequence 1 gets `count` tokens, each with an alternative."""
    source.apply(
        events.step(
            step,
            start_time=source.state.time,
            time=source.state.time + 0.01,
            sequences=[
                update(
                    1,
                    SequenceStatus.RUNNING,
                    41,
                    tokens=[7] * count,
                    logprobs=[math.log(0.25)] * count,
                    top_logprobs=[
                        {
                            7: Logprob(math.log(0.25), 2, " fox"),
                            8: Logprob(math.log(0.5), 1, " owl"),
                        }
                    ]
                    * count,
                    text=" fox" * count,
                )
            ],
            stats=source.state.stats,
        )
    )


def test_the_log_probability_of_an_output_is_shown_where_all_are_known() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("a")
    script.step(prefill={"a": 40})
    decoded(source, 5, 3)
    sequence = source.state.sequences[1]
    assert sum_of_logprobs(sequence) == " · sum -4.66, mean -1.165"
    sequence.output_token_ids = sequence.output_token_ids.plus([7])  # one without
    assert sum_of_logprobs(sequence) == ""
    del sequence.output_token_ids[-1]
    sequence.cumulative_logprob = -math.inf
    assert sum_of_logprobs(sequence) == ""
    assert sum_of_logprobs(SequenceState(2, "b")) == ""


def test_only_visible_tokens_are_drawn(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("a")
    script.step(prefill={"a": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        pilot.press("enter", *["o"] * 3)
        assert "logprob" in screen(app)
        decoded(source, 5, 20_000)
        pilot.draw()
        tokens = app.screen.query_one(TokenList)
        assert tokens.virtual_size.height == 20_002
        assert "20000        7   fox             -1.386   25%   owl 50%" in screen(app)
        before = lines[tokens]
        decoded(source, 6, 1)
        pilot.draw()
        assert lines[tokens] - before <= tokens.size.height
        pilot.press("tab", "end")
        assert "      0        1" in screen(app)


@given(
    st.lists(st.integers(-1, 2**31), min_size=1, max_size=3),
    st.lists(st.floats(), max_size=3),
    st.none() | st.sampled_from([HOSTILE, CJK, "", " x"]),
    st.integers(10, 120),
)
def test_any_token_fills_its_line(
    ids: list[int], logprobs: list[float], text: str | None, width: int
) -> None:
    sequence = SequenceState(
        1, "r", output_token_ids=Ints.of(ids), output_logprobs=Floats.of(logprobs)
    )
    candidates = {ids[0]: Logprob(-1.0, 1, text), 3: Logprob(math.nan, 2, text)}
    sequence.top_logprobs = TopLogprobs.of({0: candidates})
    line = token_line(sequence, 0, width)
    assert line_width(line) == width
    assert plain(line).isprintable()
