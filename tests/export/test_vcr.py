"""Trace records for vllm-vcr, checked against its schema (`TraceMeta` and `TraceRecord`)."""

import math
from pathlib import Path

import msgspec
import pytest

from seqtop.export import vcr
from seqtop.export.lifecycle import read_runs
from seqtop.history import FileStore
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.wire.messages import RequestFinished
from tests.support.decided_runs import recorded as recording_of
from tests.support.events import arrival, engine_info, step, update


class Meta(msgspec.Struct, forbid_unknown_fields=True):
    source: str
    model: str
    max_num_seqs: int
    block_size: int


class Header(msgspec.Struct, forbid_unknown_fields=True):
    meta: Meta


class Record(msgspec.Struct, forbid_unknown_fields=True):
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_ms: float
    itl_ms: list[float]
    arrival_ms: float
    finish_reason: str
    output_token_ids: list[int]
    block_hashes: list[int] = []
    itl_tokens: list[int] | None = None


def test_records_add_up_to_the_latencies_of_the_requests(recorded: Path) -> None:
    times = vcr.TokenTimes()
    with FileStore(recorded) as recording:
        (run,) = read_runs(recording, times)
    header, *lines = vcr.encode([run], times)
    assert msgspec.json.decode(header, type=Header).meta.block_size == 16
    records = [msgspec.json.decode(line, type=Record) for line in lines]
    redacted = [msgspec.json.decode(line) for line in vcr.encode([run], times, redact=True)][1:]
    assert len(redacted) == len(records)
    assert not any("output_token_ids" in record for record in redacted)
    start = min(it.request.metrics.arrival_time for it in run.requests.values())
    whole = [
        it
        for it in run.requests.values()
        if it.request.finish_reason is not None and it.sequences[0].output_token_ids
    ]
    for record, lifecycle in zip(records, whole, strict=True):
        request, metrics, (sequence,) = (
            lifecycle.request,
            lifecycle.request.metrics,
            lifecycle.sequences,
        )
        assert record.output_token_ids == sequence.output_token_ids.tolist()
        assert record.cached_tokens == sequence.num_prompt_hits
        assert len(record.block_hashes) == request.num_prompt_tokens // 16
        assert record.output_tokens == 1 + sum(record.itl_tokens or [1] * len(record.itl_ms))
        seconds = (record.ttft_ms + sum(record.itl_ms)) / 1e3
        assert math.isclose(seconds, metrics.last_token_time - metrics.arrival_time, abs_tol=1e-6)
        arrival = metrics.arrival_time - start
        assert math.isclose(record.arrival_ms / 1e3, arrival, abs_tol=1e-6)


@pytest.mark.parametrize(
    ("counts", "itl_tokens"), [([1, 1, 1], None), ([2, 2], [2]), ([1, 3, 1], [3, 1]), ([2], [])]
)
def test_the_tokens_of_steps_are_given_if_they_are_not_one_each(
    counts: list[int], itl_tokens: list[int] | None
) -> None:
    steps = [
        step(number, sequences=[update(1, tokens=[7] * count)])
        for number, count in enumerate(counts)
    ]
    metrics = RequestMetrics(1.0, 102.0, 100.0, 100.5, 99.0, 103.0)
    end = RequestFinished("req-1", 103.0, SequenceStatus.FINISHED_STOPPED, metrics)
    times = vcr.TokenTimes()
    runs = read_runs(recording_of((engine_info(), arrival(1), *steps, end)), times)
    _, line = vcr.encode(runs, times)
    record = msgspec.json.decode(line, type=Record)
    assert (record.itl_tokens, record.itl_ms) == (itl_tokens, [1_000.0] * (len(counts) - 1))
