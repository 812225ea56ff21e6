"""Workloads of a recording: played back by the bundled engine, and read by others."""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.export import mooncake
from seqtop.export.lifecycle import read_runs
from seqtop.history import FileStore
from seqtop.live.session import Session
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.wire.messages import RequestFinished
from tests.support.decided_runs import recorded as recorded_from
from tests.support.events import arrival, engine_info, step, update
from tests.support.forked import start
from tests.support.waiting import wait_until


def rows_of(path: Path) -> list[mooncake.MooncakeRequest]:
    return msgspec.json.Decoder(mooncake.MooncakeRequest).decode_lines(path.read_bytes())


def test_a_recording_is_played_back_with_its_arrivals_lengths_and_shared_prefixes(
    recorded: Path,
    tmp_path: Path,
) -> None:
    workload, again = tmp_path / "load.jsonl", tmp_path / "again.jsonl"
    assert main(["export", str(recorded), "--mooncake", "-o", str(workload)]) == 0
    rows = rows_of(workload)
    with FileStore(recorded) as recording:
        (run,) = read_runs(recording)
    assert [row.request_id for row in rows] == [
        name
        for name, it in run.requests.items()
        if it.request.finish_reason is not None and it.sequences[0].output_token_ids
    ]
    for row in rows:
        lifecycle = run.requests[row.request_id]
        request, (sequence,) = lifecycle.request, lifecycle.sequences
        assert row.input_length == request.num_prompt_tokens
        assert row.output_token_ids == sequence.output_token_ids.tolist()
        assert len(row.hash_ids) == math.ceil(row.input_length / run.info.block_size)
    assert len({row.hash_ids[0] for row in rows}) < len(rows), "no prefix is shared"

    endpoint = f"ipc://{tmp_path}/engine"
    command = [sys.executable, "-m", "engine_stub", "serve", "--device", "cpu", "--threads", "1"]
    command += ["--bind", endpoint, "--load", str(workload), "--until-stdin-closes"]
    with start(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as engine:
        with Session(endpoint) as session:
            wait_until(lambda: session.state.num_finished == len(rows))
        assert main(["export", endpoint, "--mooncake", "-o", str(again)]) == 0
        engine.stdin.close()
        engine.wait()
    played = rows_of(again)
    for row, other in zip(rows, played, strict=True):
        assert abs(row.timestamp - other.timestamp) <= 0.002, "microseconds are rounded"
        for name in ("request_id", "input_length", "output_length", "hash_ids", "priority"):
            assert getattr(row, name) == getattr(other, name)


def test_times_are_milliseconds_after_the_first_arrival() -> None:
    """Requests without an end or without an output are left out."""
    arrived = [
        msgspec.structs.replace(arrival(number), arrival_time=number * 2.5)
        for number in (1, 2, 3, 4)
    ]
    given = [update(number, tokens=[7] * number) for number in (1, 2, 4)]
    ends = [ended(number) for number in (1, 2, 3)]
    runs = read_runs(recorded_from((engine_info(), *arrived, step(0, sequences=given), *ends)))
    trace = mooncake.read(runs, 16)
    assert [(row.request_id, row.timestamp, row.output_length) for row in trace.rows] == [
        ("req-1", 0.0, 1),
        ("req-2", 2_500.0, 2),
    ]
    assert trace.num_left_out == 2


@pytest.mark.parametrize(("size", "expected"), [(32, 32), (1, 1), (0, 16)])
def test_the_block_size_is_that_of_the_engine_if_it_is_known(size: int, expected: int) -> None:
    runs = read_runs(recorded_from((engine_info(block_size=size), step(0))))
    assert mooncake.block_size_of(runs) == expected


def ended(number: int) -> RequestFinished:
    metrics = RequestMetrics(number * 2.5, 100.5, 100.0, 100.5, 1.0, 101.0)
    return RequestFinished(f"req-{number}", 101.0, SequenceStatus.FINISHED_STOPPED, metrics)


@pytest.mark.release("needs AIPerf, which takes a hundred packages")
def test_aiperf_reads_a_workload(recorded: Path, tmp_path: Path) -> None:
    aiperf = shutil.which("aiperf")
    if aiperf is None:
        pytest.skip("aiperf is not installed")
    workload, report = tmp_path / "load.jsonl", tmp_path / "report.json"
    assert main(["export", str(recorded), "--mooncake", "-o", str(workload)]) == 0
    command = [aiperf, "analyze-trace", str(workload), "--block-size", "16"]
    subprocess.run([*command, "--output-file", str(report)], check=True, cwd=tmp_path)
    found, rows = json.loads(report.read_text()), rows_of(workload)
    assert found["total_requests"] == len(rows)
    assert found["unique_prefixes"] == len({number for row in rows for number in row.hash_ids})
