"""Defaults of the fields of a state, which are part of the format."""

import msgspec
import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState, Span
from seqtop.wire import codec
from seqtop.wire.snapshot import BlockedTimes, WaitTimes
from tests.support.reducer_events import metrics


def test_a_new_state_knows_nothing() -> None:
    found = msgspec.structs.asdict(EngineState())
    assert found == {
        "info": None, "step": -1, "time": 0.0, "stats": None, "requests": {}, "sequences": {},
        "finished": [], "max_finished": 1_000, "num_by_status": [0] * 7, "num_output_tokens": 0,
        "num_steps_seen": 0, "stopped": None, "num_anomalies": 0, "last_anomaly": None,
        "num_prefill_tokens": 0, "num_finished": 0, "wait_reason_ids": [],
        "blocked": BlockedTimes(), "num_queued": 0, "cached_blocks": None,
        "num_missed_tokens": {}, "num_drafted": [], "num_accepted": [],
    }  # fmt: skip


def test_a_sequence_waits_without_tokens_until_told_otherwise() -> None:
    sequence = codec.decode(msgspec.msgpack.encode({"seq_id": 1, "request_id": "a"}), SequenceState)
    found = msgspec.structs.asdict(sequence)
    assert found == {
        "seq_id": 1, "request_id": "a", "status": SequenceStatus.WAITING,
        "num_prompt_tokens": 0, "num_computed_tokens": 0, "num_cached_tokens": 0,
        "num_prompt_hits": 0, "output_token_ids": [], "output_logprobs": [], "top_logprobs": {},
        "cumulative_logprob": 0.0, "text": "", "last_delta_length": 0, "block_table": [],
        "stop_reason": None, "parent_seq_id": None, "last_step": -1, "engine_status": "",
        "num_draft_tokens": None, "num_accepted_tokens": None, "group_block_tables": [],
        "host_table": [], "fork_length": None, "num_external_tokens": 0, "text_lengths": [],
        "prefix_misses": None,
    }  # fmt: skip
    assert sequence.num_tokens == 0
    sequence.num_prompt_tokens = 8
    sequence.output_token_ids.extend([5, 6])
    assert sequence.num_tokens == 10


def test_a_request_has_done_nothing_until_told_otherwise() -> None:
    found = msgspec.structs.asdict(RequestState("a", metrics(), [1]))
    assert found == {
        "request_id": "a", "metrics": metrics(), "seq_ids": [1], "num_prompt_tokens": 0,
        "prompt": None, "prompt_token_ids": [], "sampling_params": None, "pooling_params": None,
        "priority": 0, "spans": [], "is_announced": False, "token_chunk_size": 0,
        "num_scheduled_steps": 0,
        "num_preemptions": 0, "num_lost_tokens": 0, "last_preemption_mode": None,
        "preempted_for": None, "wait_reason": None, "wait": WaitTimes(), "finish_reason": None,
        "preemption_steps": [], "queue_turn": 0, "lora": "", "cache_salt": "",
        "parent_request_id": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            WaitTimes(),
            {"total": 0.0, "by_cause": {}, "named": 0.0, "since": None, "blocked_before": {}},
        ),
        (BlockedTimes(), {"by_cause": {}, "until": 0.0}),
        (
            Span("queued", 1.0, None),
            {"kind": "queued", "start": 1.0, "end": None, "num_steps": 0, "num_tokens": 0},
        ),
    ],
)
def test_times_are_zero_until_told_otherwise(
    given: WaitTimes | BlockedTimes | Span, expected: dict[str, object]
) -> None:
    assert msgspec.structs.asdict(given) == expected


def test_anomalies_are_counted_and_the_last_is_kept() -> None:
    state = EngineState()
    state.report_anomaly("one")
    state.report_anomaly("two")
    assert (state.num_anomalies, state.last_anomaly) == (2, "two")
