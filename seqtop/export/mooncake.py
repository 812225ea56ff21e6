"""Workloads in the Mooncake format, as Dynamo, AIPerf and vLLM's benchmarks read it: JSON lines.

A row is a request with its arrival, its lengths, and the numbers of its prompt's blocks, so that a
replay has prompts that share the same prefixes. `engine_stub.entrypoints.load` reads the format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from seqtop.export.block_numbers import BlockNumbers
from seqtop.export.lifecycle import EngineRun, RequestLifecycle
from seqtop.export.measured import MeasuredRequests


class MooncakeRequest(msgspec.Struct, omit_defaults=True):
    """A request of a workload. Lengths are tokens."""

    timestamp: float
    """Milliseconds from the first arrival."""
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None
    """The numbers of the prompt's blocks; `None` if its tokens are unknown."""
    request_id: str = ""
    session_id: str | None = None
    priority: int = 0
    output_token_ids: list[int] | None = None
    """`None` if they are unknown, or are left out."""


class MooncakeTrace(msgspec.Struct):
    """The rows of a recording."""

    rows: list[MooncakeRequest]
    num_left_out: int
    """Requests whose output is not complete or empty: their length is unknown."""


def read(
    runs: list[EngineRun],
    block_size: int,
    *,
    redact: bool = False,
    measured: MeasuredRequests | None = None,
) -> MooncakeTrace:
    """Returns the workload of a recording, in the order of the arrivals.

    Args:
        runs: The recording.
        block_size: Tokens per block.
        redact: Leaves the tokens of outputs out.
        measured: What others measured, from which the sessions follow.
    """
    numbers = BlockNumbers(block_size)
    requests = sorted(_complete(runs), key=lambda item: _arrival(item[1]))
    first = _arrival(requests[0][1]) if requests else 0.0
    rows = []
    for run, lifecycle in requests:
        request = lifecycle.request
        is_known = not redact and not (run.info and run.info.redacted)
        output = lifecycle.sequences[0].output_token_ids
        found = None if measured is None else measured.of(lifecycle)
        rows.append(
            MooncakeRequest(
                timestamp=round((_arrival(lifecycle) - first) * 1e3, 3),
                input_length=request.num_prompt_tokens,
                output_length=len(output),
                hash_ids=numbers.of_prompt(request) or None,
                request_id=request.request_id,
                session_id=None if found is None else found.session_id,
                priority=request.priority,
                output_token_ids=output.tolist() if is_known else None,
            )
        )
    return MooncakeTrace(rows, sum(len(run.requests) for run in runs) - len(rows))


def encode(workload: MooncakeTrace) -> Iterator[bytes]:
    """Yields the lines of a workload."""
    for row in workload.rows:
        yield msgspec.json.encode(row) + b"\n"


def block_size_of(runs: list[EngineRun]) -> int:
    """Returns the block size of the recorded engine; 16 if it is unknown."""
    sizes = [run.info.block_size for run in runs if run.info and run.info.block_size > 0]
    return sizes[0] if sizes else 16


def _complete(runs: list[EngineRun]) -> Iterator[tuple[EngineRun, RequestLifecycle]]:
    for run in runs:
        for lifecycle in run.requests.values():
            is_finished = lifecycle.request.finish_reason is not None
            outputs = [sequence.output_token_ids for sequence in lifecycle.sequences]
            if is_finished and outputs and outputs[0] and math.isfinite(_arrival(lifecycle)):
                yield run, lifecycle


def _arrival(lifecycle: RequestLifecycle) -> float:
    return lifecycle.request.metrics.arrival_time
