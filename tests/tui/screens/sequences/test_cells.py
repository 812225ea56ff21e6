"""The table's cells: every line as wide as it should be, whatever the wire says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import RequestMetrics
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import DEFAULT_COLUMNS, FIELDS, PREEMPTED, STATUS_WORDS, arrange
from seqtop.state.tree import TreePosition
from seqtop.text import format as fmt
from seqtop.tui.rendering.sequence_label import GLYPHS
from seqtop.tui.rendering.style import STYLES, line_width, plain, text_width
from seqtop.tui.screens.sequences import cells
from tests.support.scripted import ScriptedSource
from tests.support.strategies import REQUESTS, SEQUENCES


@given(REQUESTS, SEQUENCES, st.floats(), st.integers(20, 250))
def test_any_row_fills_its_width_exactly(
    request: RequestState, sequence: SequenceState, now: float, width: int
) -> None:
    columns = arrange(width)
    line = cells.row(columns, request, sequence, now)
    assert line_width(line) == sum(column.width for column in columns) + len(columns) - 1
    assert plain(line).isprintable()
    assert {ink for _, ink in line} <= STYLES | {""}


@pytest.mark.parametrize("time", [float("inf"), float("-inf"), float("nan")])
def test_a_time_that_no_clock_measures_has_no_age(time: float) -> None:
    metrics = RequestMetrics(time, time, None, None, None)
    request = RequestState("a", metrics, [1])
    sequence = SequenceState(1, "a")
    sequence.output_token_ids.append(5)
    line = cells.row(arrange(112), request, sequence, 100.0)
    assert line_width(line) == 112


def test_columns_fill_the_width_and_keep_what_matters() -> None:
    for width in range(30, 260):
        columns = arrange(width)
        keys = [column.key for column in columns]
        assert {"request", "status", "out", "text"} <= set(keys), width
        assert keys == [key for key in DEFAULT_COLUMNS if key in keys], width
        if width >= 60:
            assert sum(column.width for column in columns) + len(columns) - 1 == width
            assert columns[-1].width >= 14, width
        narrower = {column.key for column in arrange(width - 1)}
        assert set(keys) >= narrower or width <= 60, width


def test_at_80_columns_the_essential_is_there() -> None:
    keys = [column.key for column in arrange(78)]
    assert keys == [
        "request", "status", "out", "blocks", "ttft", "waited", "why", "preempt", "text"
    ]  # fmt: skip
    assert len(arrange(198)) == len(DEFAULT_COLUMNS)


@pytest.mark.parametrize("width", [38, 78, 118])
def test_the_sorted_column_can_be_seen(width: int) -> None:
    for key in FIELDS:
        shown = [column.key for column in arrange(width, sort_key=key)]
        assert key in shown
        assert shown[-1] == "text" or "text" not in shown
        others = [name for name in shown if name != key]
        assert others == [name for name in DEFAULT_COLUMNS if name in others]


def test_a_cell_belongs_to_its_column() -> None:
    columns = arrange(100)
    keys = [cells.column_at(columns, x) for x in range(100)]
    assert [key for index, key in enumerate(keys) if index == 0 or keys[index - 1] != key] == [
        column.key for column in columns
    ]
    assert keys[columns[0].width + 1] == columns[1].key
    assert cells.column_at(columns, 1000) is None


def test_each_status_has_a_sign_of_its_own() -> None:
    words = {*STATUS_WORDS.values(), PREEMPTED}
    assert words <= GLYPHS.keys()
    signs = [sign for sign, _ in GLYPHS.values()]
    assert len(set(signs)) == len(signs)


def texts(source: ScriptedSource, name: str, width: int = 198) -> dict[str, str]:
    """Each column's text in the row of a request."""
    request = source.state.requests[name]
    sequence = source.state.sequences[request.seq_ids[0]]
    columns = arrange(width)
    text_of = {}
    for column in columns:
        line = cells.row((column,), request, sequence, source.state.time)
        text_of[column.key] = plain(line).strip()
    return text_of


def test_the_scene_in_figures(source: ScriptedSource) -> None:
    row = texts(source, "req-2")
    assert row["status"] == "● running"
    assert row["stage"] == "decode"
    assert (row["prompt"], row["cached"], row["out"], row["blocks"]) == ("48", "32", "40", "6")
    assert row["computed"].startswith("═")
    assert row["computed"].endswith(" 87/88")
    assert row["text"].startswith("…")
    assert row["text"].endswith("it knows the way.")
    row = texts(source, "req-6")
    assert (row["status"], row["stage"]) == ("◐ running", "prefill")
    assert row["computed"].endswith("1800/1900")
    assert row["ttft"] == row["itl"] == "\N{EN DASH}"
    row = texts(source, "req-7")
    assert (row["status"], row["preempt"]) == ("↺ preempt", "1")
    assert texts(source, "req-9")["text"] == "Describe the sea in one line."
    assert [texts(source, f"done-{index}")["status"] for index in range(1, 5)] == [
        "✓ stop",
        "┤ length",
        "✗ abort",
        "⊘ ignored",
    ]


def test_sequences_of_one_request_are_told_apart(source: ScriptedSource) -> None:
    request = source.state.requests["pair"]
    names = []
    for seq_id in request.seq_ids:
        line = cells.row((FIELDS["request"],), request, source.state.sequences[seq_id], 0.0)
        names.append(plain(line).strip())
    assert names == ["pair/1", "pair/2"]
    request.request_id = "a-very-long-name-of-a-request"
    line = cells.row((FIELDS["request"],), request, source.state.sequences[request.seq_ids[1]], 0.0)
    assert plain(line) == "a-very-…/2"


def test_whatever_a_filter_can_name_can_be_a_column() -> None:
    request = RequestState(
        "req-1", RequestMetrics(1.0, 1.0, None, None, None), [1], prompt="Tell me\x1b[2J a story"
    )
    line = cells.row(arrange(60, ("id", "prompt_text")), request, SequenceState(1, "req-1"), 2.0)
    assert plain(line) == "req-1            Tell me␛[2J a story     "


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cmpl-10_parallel_sample_0", "└ cmpl-1…0"),
        ("cmpl-10_parallel_sample_12", "└ cmpl-…12"),
        ("cmpl-10/2", "└ cmp…10/2"),
        ("beams-12/3", "└ bea…12/3"),
        ("昔々あるところに_parallel_sample_3", "└ 昔々あ…3"),
        ("a-name-without-number", "└ a-name-…"),
    ],
)
def test_a_part_shows_whose_and_which_it_is(name: str, shown: str) -> None:
    metrics = RequestMetrics(0.0, 0.0, None, None, None)
    request, sequence = RequestState(name, metrics, [1]), SequenceState(1, name)
    columns = (FIELDS["request"],)
    line = plain(cells.row(columns, request, sequence, 0.0, TreePosition(0, (False,))))
    assert line.rstrip() == shown
    assert text_width(line) == 10


def test_a_part_of_a_prompt_is_not_shown_as_all_of_it() -> None:
    request = RequestState("a", RequestMetrics(0.0, 0.0, None, None, None), [1])
    request.is_prompt_partial = True
    sequence = SequenceState(1, "a", num_prompt_tokens=66, num_computed_tokens=66)
    line = plain(cells.row((FIELDS["computed"], FIELDS["total"]), request, sequence, 1.0))
    assert line.split()[1:] == ["66/?", fmt.UNKNOWN]
    sequence.output_token_ids.append(5)
    assert "66/67" in plain(cells.row((FIELDS["computed"],), request, sequence, 1.0))
