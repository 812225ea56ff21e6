"""The state as text and as JSON, on a state with everything awkward in it."""

import json

import pytest
from rich.cells import cell_len

from seqtop.connection import Connection, ConnectionState
from seqtop.export import json_document, text
from seqtop.sequence import ExecuteModelRequest, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.ordering import Sort
from seqtop.wire.messages import RequestArrived, SequenceUpdate, Step, StepStats

NASTY = "plain \x1b]52;c;AAAA\x07 \x1b[2J [red]markup[/red] \u202e日本語\n=SUM(A1)"


@pytest.fixture
def state() -> EngineState:
    state = EngineState()
    for seq_id, name in enumerate(("req-0", "日本語-リクエスト", "evil\x1b[31m")):
        state.apply(
            RequestArrived(
                request_id=name,
                arrival_time=10.0,
                seq_ids=[seq_id],
                num_prompt_tokens=2,
                prompt="x",
            )
        )
    update = SequenceUpdate(
        seq_id=0,
        status=SequenceStatus.RUNNING,
        num_computed_tokens=2,
        new_token_ids=[5],
        new_logprobs=[float("-inf")],
        text_delta=NASTY * 3,
        new_blocks=[1],
    )
    stats = StepStats(
        num_running=1,
        num_waiting=2,
        num_used_blocks=1,
        num_free_blocks=3,
        num_cached_blocks=0,
        num_prefill_tokens=2,
        num_decode_tokens=0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        num_preemptions=0,
        scheduler_time=0.1,
        model_forward_time=float("nan"),
        model_execute_time=0.3,
    )
    state.apply(
        Step(
            step=0,
            start_time=11.0,
            time=12.0,
            execute=ExecuteModelRequest([]),
            sequences=[update],
            stats=stats,
        )
    )
    return state


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
    assert all(19 <= cell_len(each) <= 20 for each in (end, begin))
    sequence.text = request.prompt = "of twenty cells, all"
    assert shown("text") == shown("prompt_text") == "of twenty cells, all"


def test_text_of_nothing_is_the_heading() -> None:
    assert text.table(EngineState()).split()[0] == "Request"


def test_json_is_valid_and_holds_the_figures(state: EngineState) -> None:
    link = Connection("ipc:///x", ConnectionState.LIVE)
    encoded = json_document.encode(state, link)
    assert b"\x1b" not in encoded
    shown = json.loads(encoded)
    assert shown["link"]["state"] == "live"
    assert shown["engine"] is None
    assert shown["stats"]["num_waiting"] == 2
    assert shown["stats"]["model_forward_time"] is None  # not a number, so not in JSON either
    assert shown["stats"]["num_swapped"] is None
    first = shown["requests"][0]
    assert first["request_id"] == "req-0"
    assert first["latency"]["ttft"] is None
    assert first["sequences"][0]["text"] == NASTY * 3
    assert first["sequences"][0]["status"] == "RUNNING"
    assert [request["request_id"] for request in shown["requests"]][2] == "evil\x1b[31m"
