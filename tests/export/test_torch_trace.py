"""Traces of torch's profiler, put below a recording on one clock."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.cli.main import main
from seqtop.history import FileWriter
from seqtop.sequence import SamplingParams
from tests.export.conftest import WritingSink
from tests.support.trace_format import Trace


def test_operators_are_within_the_execution_of_the_step_that_ran_them(tmp_path: Path) -> None:
    from torch.profiler import profile

    recording, profiled = tmp_path / "run.seqtop", tmp_path / "torch.json.gz"
    engine = LLMEngine(EngineConfig(device="cpu", num_gpu_blocks=32))
    with FileWriter(recording) as writer:
        sink = WritingSink(writer)
        sink.publish(engine_info(engine, engine_id="test", control=False))
        steps = StepPublisher(sink)
        with profile() as profiler:
            for group in engine.add_request("one", "Once upon", SamplingParams(max_tokens=4)):
                steps.arrived(group)
            while engine.has_unfinished_requests():
                steps.stepped(engine.step())
    profiler.export_chrome_trace(str(profiled))
    path = tmp_path / "run.pftrace"
    arguments = ["export", str(recording), "--perfetto", "--merge", str(profiled), "-o", str(path)]
    assert main(arguments) == 0
    trace = Trace(path.read_bytes())
    assert len(trace.processes) == 1
    executions = [slice_ for slice_ in trace.slices["steps"] if slice_.name == "execute"]
    assert len(executions) >= 4
    names = list(trace.threads.values())
    multiplications = [
        (name, slice_)
        for name in names[2:]
        for slice_ in trace.slices[name]
        if slice_.name == "aten::mm"
    ]
    assert len(multiplications) >= len(executions)
    for name, slice_ in multiplications:
        assert names.index(name) > names.index("one")
        assert any(it.start <= slice_.start < slice_.end <= it.end for it in executions)


def document(*events: dict[str, Any], **changed: Any) -> bytes:
    return json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10**18, **changed}).encode()


def kernel(ts: float | str, dur: float, **changed: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur, **changed}


def merged(recorded: Path, tmp_path: Path, content: bytes) -> int:
    (tmp_path / "torch.json").write_bytes(content)
    profiled, path = str(tmp_path / "torch.json"), str(tmp_path / "run.pftrace")
    return main(["export", str(recorded), "--perfetto", "--merge", profiled, "-o", path, "--force"])


def test_launches_lead_to_kernels_and_overlapping_kernels_are_beside_each_other(
    recorded: Path, tmp_path: Path
) -> None:
    content = document(
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": "9", "args": {"name": "python"}},
        kernel(0.5, 2, name="cudaLaunchKernel", pid=9, tid="9", args={"stream": 7, "shape": [1]}),
        {"ph": "s", "id": 3, "pid": 9, "tid": "9", "ts": 0.5, "name": "ac2g"},
        {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 1.5, "name": "ac2g", "bp": "e"},
        kernel(1.5, 4, name="one"),
        kernel(2.5, 4, name="overlapping"),
        kernel(2.5, 1, name="nested"),
        kernel(5.5, 1, name="following"),
        kernel(7.5, 0, name="empty"),
        kernel(1e300, -5, name="no time"),
        kernel("nan", 5, name="no number", pid=9, tid="8"),
    )
    assert merged(recorded, tmp_path, content) == 0
    trace = Trace((tmp_path / "run.pftrace").read_bytes())
    assert [("python", "cudaLaunchKernel"), ("GPU 0 stream 7", "one")] in trace.flows.values()
    depths = {own.name: own.depth for own in trace.slices["GPU 0 stream 7"]}
    assert (depths["one"], depths["nested"], depths["following"]) == (0, 1, 0)
    (launch,) = trace.slices["python"]
    assert (launch.start, launch.end) == (10**18 + 500, 10**18 + 2_500)
    assert launch.args == {"stream": 7, "shape": "[1]"}
    (unknown,) = trace.slices["9 8"]
    assert (unknown.start, unknown.end) == (10**18, 10**18), "at the beginning of the trace"


def test_traces_of_ranks_are_below_each_other(recorded: Path, tmp_path: Path) -> None:
    thread = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "python"}}
    options = []
    for rank in (0, 1):
        path = tmp_path / f"rank{rank}.json"
        path.write_bytes(document(thread, kernel(rank, 1), distributedInfo={"rank": rank}))
        options += ["--merge", str(path)]
    output = tmp_path / "run.pftrace"
    assert main(["export", str(recorded), "--perfetto", *options, "-o", str(output)]) == 0
    trace = Trace(output.read_bytes())
    starts = [trace.slices[f"rank {rank} python"][0].start - 10**18 for rank in (0, 1)]
    assert starts == [0, 1_000]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is no trace of torch.profiler"),
        (b"[]", "it is no trace of torch.profiler"),
        (b"\xff", "it is no trace of torch.profiler"),
        (b"[" * 100_000, "it is no trace of torch.profiler"),
        (document(baseTimeNanoseconds=None), "it has no baseTimeNanoseconds"),
        (document(kernel(0, 1, args=3)), "it is no trace of torch.profiler"),
        (document(*(kernel(number, 1_000) for number in range(40))), "32 slices of one thread"),
        (gzip.compress(document(), mtime=0)[:-12], "it cannot be decompressed"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_merged_is_named(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    assert merged(recorded, tmp_path, content) == 2
    error = capsys.readouterr().err
    assert "torch.json cannot be merged: " in error
    assert words in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run.pftrace").exists()
