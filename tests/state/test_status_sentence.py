"""The status of a sequence in one or two sentences."""

from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SamplingParams, SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.model import CachedBlock
from seqtop.state.ordering import SequenceView
from seqtop.state.status_sentence import status_sentence
from seqtop.wire.messages import PrefixMiss, WaitCause
from seqtop.wire.snapshot import WaitTimes
from tests.support.events import engine_info, wait_reason

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING


def sentence(status: SequenceStatus, **changes: Any) -> str:
    """The sentence of the third sequence; `changes` are of it or of its request."""
    state = EngineState()
    for seq_id, name in enumerate(("req-0", "req-1", "req-2")):
        metrics = RequestMetrics(float(seq_id), 0.0, None, None, None)
        state.requests[name] = RequestState(name, metrics, [seq_id])
        state.sequences[seq_id] = SequenceState(seq_id, name)
    if "num_cached_tokens" in changes:  # the others do without an engine's limits
        state.info = engine_info(block_size=16)
    if changes.pop("is_redacted", False):
        state.info = engine_info(redacted=True)
    known = dict.fromkeys((4, 5, 6, 9), CachedBlock("req-1", 1, 0))
    known |= {40 + writer: CachedBlock(f"req-{writer}", 1, 0) for writer in range(5, 9)}
    state.cached_blocks = known | {12: CachedBlock("req-2", 2, 4)}
    state.sequences[1].block_table = [20, 21, 22]
    asked = state.sequences[2]
    asked.status = status
    for name, value in changes.items():
        setattr(asked if hasattr(asked, name) else state.requests["req-2"], name, value)
    view = SequenceView()
    view.rebuild(state)
    return status_sentence(state, view, asked)


def reason(cause: WaitCause, missing: int = 0) -> dict[str, Any]:
    return {"wait_reason": wait_reason("req-2", cause, missing)}


def misses(*runs: tuple[str, int, int | None, str | None]) -> dict[str, Any]:
    fields = ("cause", "num_tokens", "step", "request_id")
    described: list[dict[str, Any]] = [dict(zip(fields, run, strict=True)) for run in runs]
    return {"prefix_misses": [PrefixMiss(**miss) for miss in described]}


PREEMPTED = {
    "num_preemptions": 1,
    "preemption_steps": [1120],
    "preempted_for": "req-9",
    "num_lost_tokens": 212,
    "last_preemption_mode": "recompute",
}
DECODING = {"num_prompt_tokens": 10, "num_computed_tokens": 10, "output_token_ids": [1]}
LIMIT = {"sampling_params": SamplingParams(max_tokens=64)}
CASES: dict[SequenceStatus, list[tuple[str, dict[str, Any]]]] = {
    WAITING: [
        ("Behind req-0, 2 sequences ahead of it in the queue.", {}),
        ("Waiting: too few blocks are free; 3 more blocks needed.", reason("no_blocks", 3)),
        ("Waiting: too few blocks are free; 1 more block needed.", reason("no_blocks", 1)),
        ("Waiting: too few blocks are free.", reason("no_blocks")),
        ("Waiting: the scheduler is paused.", reason("paused")),
        (
            (
                "Waiting: max_loras other LoRA adapters are in use. Waited 1.52 s (max_loras "
                "1.50 s, FROZEN 20.0 ms). LoRA adapter: poems."
            ),
            reason("lora_slots")
            | {
                "lora": "poems",
                "wait": WaitTimes(1.52, {"FROZEN": 0.02, "lora_slots": 1.5}, named=1.52),
            },
        ),
        ("Waiting: the scheduler gave no reason.", reason("unknown")),
        (
            "Waiting: too few blocks are free. Waited 1.50 s (no reason given).",
            reason("no_blocks") | {"wait": WaitTimes(1.5, {}, named=0.0)},
        ),
        (
            (
                "Waiting: too few blocks are free. Waited 10.0 s (no free blocks 6.00 s, no "
                "reason given 4.00 s), 2.00 s of it behind others."
            ),
            reason("no_blocks") | {"wait": WaitTimes(10.0, {"no_blocks": 6.0}, named=4.0)},
        ),
        (
            "Waiting: a KV connector is loading its KV cache (WAITING_FOR_REMOTE_KVS).",
            {"engine_status": "WAITING_FOR_REMOTE_KVS"},
        ),
        (
            "Waiting: the step's token budget is used up; 1 more token needed.",
            reason("token_budget", 1),
        ),
        ("Waiting: the step's token budget is used up.", reason("token_budget")),
        ("Waiting: max_num_seqs sequences are running.", reason("seq_limit")),
        (
            "Waiting: max_num_seqs sequences are running; 2 more sequence slots needed.",
            reason("seq_limit", 2),
        ),
        (
            (
                "Preempted at step 1,120 to make room for req-9; 212 computed tokens will be "
                "recomputed. Waiting: too few blocks are free; 3 more blocks needed."
            ),
            PREEMPTED | reason("no_blocks", 3),
        ),
        (
            (
                "Preempted at step 1,120 to make room for req-9; 212 computed tokens will be "
                "recomputed. Next in the queue."
            ),
            PREEMPTED | {"priority": -1, "block_table": [7]},
        ),
        (
            (
                "Preempted at step 1,120 because no blocks were free for it; 212 computed tokens "
                "will be recomputed. Waiting: too few blocks are free; 3 more blocks needed."
            ),
            PREEMPTED | {"preempted_for": "req-2"} | reason("no_blocks", 3),
        ),
        (
            (
                "Preempted at step 1,120; 3 preemptions have cost it 500 tokens. Waiting: too "
                "few blocks are free."
            ),
            PREEMPTED
            | {"preempted_for": None, "num_preemptions": 3, "num_lost_tokens": 500}
            | reason("no_blocks"),
        ),
        (
            (
                "Behind req-0, which is more urgent (priority 0 before 3), 2 sequences ahead of "
                "it in the queue."
            ),
            {"priority": 3},
        ),
    ],
    RUNNING: [
        (
            (
                "Decoding: 1 token so far. Preempted at step 1,120 to make room for req-9; 212 "
                "computed tokens lost."
            ),
            PREEMPTED | DECODING,
        ),
        (
            (
                "Decoding: 1 token so far. 16 tokens found in the prefix cache: 1 block (13). 32 "
                "tokens loaded by the KV connector. Not in the prefix cache from token 16 on: 16 "
                "tokens not seen before."
            ),
            DECODING
            | {"num_cached_tokens": 48, "num_external_tokens": 32, "block_table": [13, 14, 15]}
            | misses(("new_tokens", 16, None, None)),
        ),
        (
            "Decoding: 1 token so far. 3 tokens loaded by the KV connector.",
            DECODING | {"num_external_tokens": 3},
        ),
        (
            "Computing its 900 tokens: 512 are in the cache.",
            {"num_prompt_tokens": 900, "num_computed_tokens": 512},
        ),
        (
            "Computing its 12 tokens again, as it was preempted: 4 are in the cache.",
            {"num_prompt_tokens": 10, "num_computed_tokens": 4, "output_token_ids": [1, 2]},
        ),
        (
            "Decoding: 1 of at most 64 tokens so far.",
            LIMIT | {"num_prompt_tokens": 10, "num_computed_tokens": 10, "output_token_ids": [1]},
        ),
        (
            "Decoding: 1 token so far.",
            {"num_prompt_tokens": 10, "num_computed_tokens": 10, "output_token_ids": [1]},
        ),
        (
            (
                "Decoding: 1 token so far. Nothing found in the prefix cache: 16 tokens evicted "
                "at step 40 for req-9, 32 not stored by req-1, which was admitted at step 41, 48 "
                "of req-0 with another adapter or salt, 16 cached behind missing ones, 21 more."
            ),
            DECODING
            | misses(
                ("evicted", 16, 40, "req-9"),
                ("not_stored", 32, 41, "req-1"),
                ("extra_keys", 48, None, "req-0"),
                ("broken_prefix", 16, None, None),
                ("new_tokens", 16, None, None),
                ("partial_block", 5, None, None),
            ),
        ),
        (
            (
                "Decoding: 1 token so far. 32 tokens found in the prefix cache: 2 blocks written "
                "by req-1 (4, 9)."
            ),
            DECODING | {"num_cached_tokens": 32, "block_table": [4, 9, 11]},
        ),
        (
            (
                "Decoding: 1 token so far. 96 tokens found in the prefix cache: 4 blocks written "
                "by req-1 (4-6, 9); 1 block that it wrote itself (12); 1 block (13)."
            ),
            DECODING | {"num_cached_tokens": 96, "block_table": [4, 5, 6, 9, 12, 13, 11]},
        ),
        (
            (
                "Decoding: 1 token so far. 64 tokens found in the prefix cache: 4 blocks (20, "
                "22, 24, 26)."
            ),
            DECODING | {"num_cached_tokens": 64, "block_table": [20, 22, 24, 26, 28]},
        ),
        (
            (
                "Decoding: 1 token so far. 96 tokens found in the prefix cache: 6 blocks (20, "
                "22, 24, 26 and more)."
            ),
            DECODING | {"num_cached_tokens": 96, "block_table": [20, 22, 24, 26, 28, 30]},
        ),
        (
            (
                "Decoding: 1 token so far. 96 tokens found in the prefix cache: 1 block written "
                "by req-1 (4); 1 block written by req-5 (45); 1 block written by req-6 (46); 1 "
                "block written by req-7 (47); and blocks of 2 other requests."
            ),
            DECODING | {"num_cached_tokens": 96, "block_table": [4, 45, 46, 47, 48, 12]},
        ),
        (
            "Decoding: 1 token so far. 32 tokens found in the prefix cache.",
            {"last_preemption_mode": "swap"}
            | DECODING
            | {"num_cached_tokens": 32, "block_table": [4, 9, 11]},
        ),
        (
            "Decoding: 1 token so far. A fork of sequence 1 at token 40, sharing 2 blocks with it.",
            DECODING | {"parent_seq_id": 1, "fork_length": 40, "block_table": [20, 21, 30]},
        ),
        (
            "Decoding: 1 token so far. A fork of sequence 77 at token 40.",
            DECODING | {"parent_seq_id": 77, "fork_length": 40, "block_table": [20]},
        ),
    ],
    SequenceStatus.SWAPPED: [
        (
            (
                "Swapped out at step 1,120 to make room for req-9; nothing is lost. Waiting for "
                "free blocks on the device."
            ),
            PREEMPTED | {"last_preemption_mode": "swap"},
        ),
        (
            (
                "Swapped out at step 1,120 to make room for req-9, 2 blocks to host memory; "
                "nothing is lost. Waiting: too few blocks are free; 3 more blocks needed."
            ),
            PREEMPTED
            | {"last_preemption_mode": "swap"}
            | reason("no_blocks", 3)
            | {"host_table": [7, 8]},
        ),
    ],
    SequenceStatus.FINISHED_LENGTH_CAPPED: [
        (
            (
                "Finished: it reached its limit of tokens. Preempted at step 1,120 because no "
                "blocks were free for it; 212 computed tokens lost. Waited 1.50 s (no free blocks "
                "1.50 s)."
            ),
            PREEMPTED
            | {"preempted_for": "req-2", "wait": WaitTimes(1.5, {"no_blocks": 1.5}, named=1.5)},
        ),
        (
            (
                "Finished: it reached its limit of tokens. Swapped out at step 1,120 to make room "
                "for req-9; nothing was lost."
            ),
            PREEMPTED | {"last_preemption_mode": "swap", "num_lost_tokens": 0},
        ),
        (
            (
                "Finished: it reached its limit of tokens. Preempted 3 times, 500 computed tokens "
                "lost, the last time at step 1,120 to make room for req-9."
            ),
            PREEMPTED | {"num_preemptions": 3, "num_lost_tokens": 500},
        ),
        (
            (
                "Finished: it reached its limit of tokens. Not in the prefix cache from token 32 "
                "on: 16 tokens not seen before, 16 for an unknown reason; no request had them "
                "since step 7, 3 at the prompt's end, which is always computed."
            ),
            {"num_cached_tokens": 32}
            | misses(
                ("new_tokens", 16, None, None),
                ("unknown", 16, 7, None),
                ("partial_block", 3, None, None),
            ),
        ),
        (
            (
                "Finished: it reached its limit of tokens. All its tokens have to be computed, "
                "so it does not use the prefix cache."
            ),
            misses(("not_cacheable", 10, None, None)),
        ),
        ("Finished: it reached its limit of tokens (64).", LIMIT),
    ],
    SequenceStatus.FINISHED_STOPPED: [
        ("Finished at the end-of-text token after 2 tokens.", {"output_token_ids": [1, 2]}),
        ("Finished by itself after 2 tokens.", {"output_token_ids": [1, 2], "is_redacted": True}),
        ("Finished at stop token 13 after 0 tokens.", {"stop_reason": 13}),
        ("Finished at the stop string 'END' after 0 tokens.", {"stop_reason": "END"}),
    ],
    SequenceStatus.FINISHED_ABORTED: [
        ("Aborted after 0 tokens.", {}),
        (
            "Aborted after 0 tokens: The request queue is full.",
            {"stop_reason": "The request queue is full."},
        ),
    ],
    SequenceStatus.FINISHED_IGNORED: [
        ("Ignored: the prompt exceeds the engine's maximum length.", {}),
    ],
}
"""The sentence of a sequence by its status and by the fields that have other values."""


@pytest.mark.parametrize(
    ("status", "expected", "changes"),
    [(status, *case) for status, cases in CASES.items() for case in cases],
)
def test_explanation(status: SequenceStatus, expected: str, changes: dict[str, Any]) -> None:
    assert sentence(status, **changes) == expected
