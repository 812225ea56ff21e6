"""The plain text table, of a state with unusual values."""

import pytest
from rich.cells import cell_len

from seqtop.export import text
from seqtop.state import EngineState
from seqtop.state.ordering import Sort
from tests.support.awkward_state import awkward_state
from tests.support.scripted import engine_info


@pytest.fixture
def state() -> EngineState:
    return awkward_state()


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_text_fits_and_cannot_move_the_cursor(
    state: EngineState, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = text.table(state).splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)
    assert "\u202e" not in "".join(lines)
    if width >= 60:
        assert max(map(cell_len, lines)) <= width
        assert lines[1].startswith("req-0")
    if width >= 80:
        assert lines[1].rstrip().endswith("=SUM(A1)")


@pytest.mark.parametrize("written", ["and so they went to the river", "猫が川へ行きました。" * 3])
def test_text_that_is_not_whole_says_so(
    written: str, state: EngineState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    sequence = state.sequences[0]
    request = state.requests[sequence.request_id]

    def shown(column: str) -> str:
        return text.table(state, columns=[column], sort=Sort("seq")).splitlines()[1]

    sequence.text = request.prompt = written
    end, begin = shown("text"), shown("prompt_text")
    assert end[0] == begin[-1] == "…"
    assert written.endswith(end[1:])
    assert written.startswith(begin[:-1].rstrip())
    assert all(19 <= cell_len(line) <= 20 for line in (end, begin))
    sequence.text = request.prompt = "of twenty cells, all"
    assert shown("text") == shown("prompt_text") == "of twenty cells, all"


def test_numbers_end_below_the_end_of_their_titles(state: EngineState) -> None:
    state.sequences[0].num_computed_tokens = 1_234
    lines = text.table(state, columns=["computed", "out"], sort=Sort("seq")).splitlines()
    assert lines == ["Computed  Out", "   1,234    1", "       0    0", "       0    0"]


def test_text_of_nothing_is_the_heading() -> None:
    assert text.table(EngineState()).split()[0] == "Request"


def test_a_column_that_the_engine_cannot_give_says_so(state: EngineState) -> None:
    state.info = engine_info(not_available={"why": "it has no queue"})
    title, *rows = text.table(state, columns=["out", "why"], sort=Sort("seq")).splitlines()
    assert title.split() == ["Out", "Why"]
    assert {row.split()[1] for row in rows} == {"n/a"}
    assert "n/a" not in {row.split()[0] for row in rows}
