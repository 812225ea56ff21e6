"""Measurements of AIPerf and Dynamo, joined to a recording of the bundled engine."""

import csv
import gzip
import json
import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import DEFAULT_MODEL
from seqtop.cli.main import main
from seqtop.export.lifecycle import EngineRun, read_runs
from seqtop.export.measured import MeasuredError, MeasuredRequests
from seqtop.history import FileStore
from tests.support.http_engine import MODEL, serve
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def run(recorded: Path) -> EngineRun:
    with FileStore(recorded) as recording:
        (run,) = read_runs(recording)
    return run


def aiperf(request_id: str, ttft: float, **metadata: Any) -> dict[str, Any]:
    """A line as AIPerf 0.13 writes it, cut to a part of its fields."""
    return {
        "metadata": {
            "session_num": 0,
            "x_request_id": request_id,
            "request_start_ns": 1,
            "benchmark_phase": "profiling",
            **metadata,
        },
        "metrics": {
            "time_to_first_token": {"value": ttft, "unit": "ms"},
            "inter_chunk_latency": {"value": [1.0, 2.0], "unit": "ms"},
            "request_latency": {"value": ttft + 100, "unit": "ms"},
        },
        "error": None,
    }


def dynamo(request_id: str, received: float, **changes: Any) -> dict[str, Any]:
    request: dict[str, Any] = {"request_id": f"dynamo-{received}", "x_request_id": request_id}
    request |= {"request_received_ms": received, "output_tokens": 4, **changes}
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": received + 10,
        "agent_context": {"session_id": "agent"},
        "request": request,
    }


def tool(start: float, end: float, event_type: str = "tool_end") -> dict[str, Any]:
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": event_type,
        "event_time_unix_ms": end,
        "session_id": "agent",
        "tool": {"tool_call_id": "call", "ended_at_unix_ms": end, "duration_ms": end - start},
    }


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_the_front_end_is_what_the_client_waited_longer_than_the_engine(
    recorded: Path, run: EngineRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client, agents, output = tmp_path / "client.jsonl", tmp_path / "dynamo.gz", tmp_path / "o.csv"
    client.write_bytes(
        lines(
            aiperf("req-0", 5_000, x_correlation_id="chat", turn_index=3),
            aiperf("req-1", 6_000),
            aiperf("elsewhere", 1),
        )
    )
    agents.write_bytes(
        gzip.compress(
            lines(
                tool(1_100, 1_400),
                dynamo("req-1", 2_000, ttft_ms=1.0),
                tool(1_200, 1_500, "tool_error"),
                dynamo("req-2", 1_000, ttft_ms=7_000.0, total_time_ms=8_000.0),
                tool(1_600, 1_650, "tool_start"),
            )
        )
    )
    options = ["--csv", "--join", str(client), "--join", str(agents), "-o", str(output)]
    assert main(["export", str(recorded), *options]) == 0
    assert capsys.readouterr().err.splitlines()[1:] == [
        "seqtop: 3 requests joined",
        f"seqtop: 1 measured request not in {recorded}: elsewhere",
    ]
    rows = {row["request_id"]: row for row in csv.DictReader(output.open(), strict=True)}
    for name, ttft in (("req-0", 5.0), ("req-1", 6.0), ("req-2", 7.0)):
        metrics = run.requests[name].request.metrics
        engine = metrics.first_token_time - metrics.arrival_time
        assert math.isclose(float(rows[name]["front_end_time"]), ttft - engine, abs_tol=1e-9)
    shown = ("measured_by", "measured_ttft", "measured_e2e_latency", "session_id", "turn")
    assert {
        name: tuple(rows[name][column] for column in (*shown, "tool_pause"))
        for name in ("req-0", "req-1", "req-2", "req-3")
    } == {
        "req-0": ("aiperf", "5.0", "5.1", "chat", "3", ""),
        "req-1": ("aiperf", "6.0", "6.1", "agent", "1", "0.4"),
        "req-2": ("dynamo", "7.0", "8.0", "agent", "0", ""),
        "req-3": ("", "", "", "", "", ""),
    }


def test_nothing_joined_is_a_failure_that_names_the_files(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = tmp_path / "client.jsonl"
    client.write_bytes(lines(aiperf("elsewhere", 1)))
    assert (
        main(
            ["export", str(recorded), "--csv", "--join", str(client), "-o", str(tmp_path / "o.csv")]
        )
        == 1
    )
    assert f"no request of {client} is in {recorded}" in capsys.readouterr().err


def test_the_two_ids_of_a_request_count_once(run: EngineRun, tmp_path: Path) -> None:
    path = tmp_path / "dynamo.jsonl"
    path.write_bytes(
        lines(
            dynamo("req-0", 1_000),
            dynamo("elsewhere", 2_000),
        )
    )
    measured = MeasuredRequests([str(path)])
    assert measured.not_found() == ["req-0", "elsewhere"]
    assert measured.of(run.requests["req-0"]) is not None
    assert (measured.num_joined, measured.not_found()) == (1, ["elsewhere"])


@pytest.mark.parametrize(
    "name",
    ["chatcmpl-req-0", "chatcmpl-req-0-0a1b2c3d", "cmpl-req-0-0", "cmpl-req-0-0-0a1b2c3d", "req-0"],
)
def test_ids_of_vllm_have_the_client_s_in_them(run: EngineRun, tmp_path: Path, name: str) -> None:
    path = tmp_path / "client.jsonl"
    path.write_bytes(lines(aiperf("req-0", 1.0)))
    lifecycle = run.requests["req-1"]
    lifecycle.request.request_id = name
    try:
        assert MeasuredRequests([str(path)]).of(lifecycle).ttft == 0.001
    finally:
        lifecycle.request.request_id = "req-1"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}\n", "line 1 is neither AIPerf's profile_export.jsonl nor dynamo.request.trace.v1"),
        (b"[]\n", "line 1: Expected `object`, got `array`"),
        (b"\n" + b"[" * 100_000, "line 2: "),
        (b'{"metadata":{"x_request_id":7}}', "line 1: Expected `str"),
        (gzip.compress(lines(aiperf("a", 1)), mtime=0)[:-9], "cannot be decompressed"),
    ],
)
def test_a_file_that_cannot_be_joined_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(MeasuredError) as error:
        MeasuredRequests([str(path)])
    assert str(error.value).startswith(str(path))
    assert words in str(error.value)


def test_values_that_are_no_times_are_unknown(run: EngineRun, tmp_path: Path) -> None:
    strange = aiperf("req-0", 1.0)
    strange["metrics"] = {
        "time_to_first_token": {"value": "x", "unit": "ms"},
        "request_latency": {"value": 1, "unit": "fortnights"},
    }
    path = tmp_path / "client.jsonl"
    path.write_bytes(lines(strange))
    found = MeasuredRequests([str(path)]).columns(run.requests["req-0"])
    assert {key: value for key, value in found.items() if value is not None} == {
        "measured_by": "aiperf"
    }


WORKLOAD = b"""\
{"timestamp":0,"input_length":40,"output_length":8,"hash_ids":[0,1,2]}
{"timestamp":100,"input_length":40,"output_length":8,"hash_ids":[0,1,3]}
{"timestamp":150,"input_length":20,"output_length":8,"hash_ids":[4,5]}
"""


@pytest.mark.release("needs AIPerf, which takes a hundred packages")
def test_aiperf_runs_a_workload_whose_times_are_joined_to_the_engine_s(tmp_path: Path) -> None:
    program = shutil.which("aiperf")
    if program is None:
        pytest.skip("aiperf is not installed")
    workload, output = tmp_path / "load.jsonl", tmp_path / "requests.csv"
    workload.write_bytes(WORKLOAD)
    # AIPerf loads tokenizers of the Hugging Face Hub: this is the bundled one in its cache.
    cache, commit = tmp_path / "hub" / "models--seqtop--stories", "0" * 40
    shutil.copytree(DEFAULT_MODEL, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with serve() as served:
        command = [program, "profile", "-m", MODEL, "--url", served.url, "--streaming"]
        command += ["--endpoint-type", "completions", "--tokenizer", "seqtop/stories"]
        command += ["--input-file", str(workload), "--custom-dataset-type", "mooncake_trace"]
        command += ["--fixed-schedule", "--isl-block-size", "16", "--ui", "simple"]
        command += ["--artifact-dir", str(tmp_path / "out")]
        subprocess.run(
            command, check=True, cwd=tmp_path, env=os.environ | offline, stdout=subprocess.DEVNULL
        )
        wait_until(lambda: served.session.state.num_finished == 3)
        measured = str(tmp_path / "out" / "profile_export.jsonl")
        arguments = ["export", served.session.connection.endpoint, "--csv", "--join", measured]
        assert main([*arguments, "-o", str(output)]) == 0
    rows = list(csv.DictReader(output.open(), strict=True))
    assert [row["measured_by"] for row in rows] == ["aiperf"] * 3
    assert len({row["session_id"] for row in rows}) == 3
    for row in rows:
        assert float(row["measured_ttft"]) > float(row["ttft"]) > 0
        assert float(row["front_end_time"]) > 0
