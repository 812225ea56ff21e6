"""Trace records of vllm-vcr (github.com/neuralmagic/vllm-vcr), whose mock engine plays them.

They are JSON lines, of which the first describes the engine. A record is a finished request with
its measured latencies, and the hashes of its prompt's blocks, which only have to be equal where
prefixes are shared.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from seqtop.export.block_numbers import BlockNumbers
from seqtop.export.lifecycle import EngineRun, RequestLifecycle, start_time
from seqtop.sequence import latency
from seqtop.state import EngineState
from seqtop.wire.messages import Event, Step

_REASONS = frozenset({"stop", "length", "abort", "error", "repetition"})


class TokenTimes:
    """The times at which the steps of a recording gave each sequence tokens.

    An observer of `seqtop.export.lifecycle.read_runs`.
    """

    def __init__(self) -> None:
        self._steps: defaultdict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)

    def __call__(self, event: Event, state: EngineState) -> None:
        """Adds the tokens of a step."""
        if isinstance(event, Step):
            incarnation = state.info.incarnation if state.info else ""
            for update in event.sequences:
                if count := len(update.new_token_ids):
                    self._steps[incarnation, update.seq_id].append((event.time, count))

    def of(self, run: EngineRun, seq_id: int) -> list[tuple[float, int]]:
        """Returns the time of each step, epoch seconds, with the number of its tokens."""
        return self._steps.get((run.incarnation, seq_id), [])


def encode(runs: list[EngineRun], times: TokenTimes, *, redact: bool = False) -> Iterator[bytes]:
    """Yields the line that describes the engine, and one line for each request that is known whole.

    Args:
        runs: The recording.
        times: The times of its tokens.
        redact: Leaves the tokens of outputs out.
    """
    info = next((run.info for run in runs if run.info), None)
    numbers = BlockNumbers(info.block_size if info and info.block_size > 0 else 16)
    meta: dict[str, Any] = {"source": "seqtop", "block_size": numbers.block_size}
    if info is not None:
        meta |= {"model": info.model, "max_num_seqs": info.max_num_seqs}
        name, _, version = info.engine.partition(" ")
        if name.lower() == "vllm" and version:
            meta["vllm_version"] = version
    yield msgspec.json.encode({"meta": meta}) + b"\n"
    start = start_time(runs)
    for run in runs:
        for lifecycle in run.requests.values():
            record = _record(run, lifecycle, times, numbers, start)
            if record is not None:
                if redact or (run.info and run.info.redacted):
                    del record["output_token_ids"]
                yield msgspec.json.encode(record) + b"\n"


def _record(
    run: EngineRun,
    lifecycle: RequestLifecycle,
    times: TokenTimes,
    numbers: BlockNumbers,
    start: float,
) -> dict[str, Any] | None:
    """Returns the record of a request; `None` if not all of its tokens' times are known."""
    request, sequences = lifecycle.request, lifecycle.sequences
    ttft = latency.ttft(request.metrics)
    if request.finish_reason is None or ttft is None or len(sequences) != 1:
        return None
    (sequence,) = sequences
    steps = times.of(run, sequence.seq_id)
    num_tokens = len(sequence.output_token_ids)
    if not num_tokens or sum(count for _, count in steps) != num_tokens:
        return None
    moments = [time for time, _ in steps]
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    arrival = request.metrics.arrival_time - start
    if not all(map(math.isfinite, (ttft, arrival, *gaps))):
        return None
    record: dict[str, Any] = {
        "prompt_tokens": request.num_prompt_tokens,
        "cached_tokens": sequence.num_prompt_hits,
        "output_tokens": num_tokens,
        "ttft_ms": _milliseconds(ttft),
        "itl_ms": list(map(_milliseconds, gaps)),
        "arrival_ms": _milliseconds(arrival),
        "output_token_ids": sequence.output_token_ids.tolist(),
    }
    if any(count != 1 for _, count in steps):
        record["itl_tokens"] = [count for _, count in steps[1:]]
    if hashes := numbers.of_prompt(request, only_full=True):
        record["block_hashes"] = hashes
    if request.finish_reason in _REASONS:
        record["finish_reason"] = request.finish_reason
    return record


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 6)
