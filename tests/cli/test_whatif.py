"""`seqtop whatif`: the proof, a prediction, and recordings that cannot be replayed."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.history import FileStore
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, Step
from seqtop.wire.redaction import redact
from tests.support.greedy_runs import NUM_REQUESTS, record_run


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("whatif") / "run.seqtop"
    record_run(path)
    return str(path)


def test_the_recording_comes_out_again(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "again.seqtop")
    assert main(["whatif", recording, "-o", output]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["unchanged", "settings:"]
    assert words[2] == words[4]
    assert main(["diff", recording, output]) == 0


def test_more_blocks_are_predicted_and_written_as_a_recording(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "more.seqtop"
    arguments = ["whatif", recording, "--set", "num_gpu_blocks=+60%", "-o", str(output)]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["is_proven"]
    assert answer["settings"] == {"num_gpu_blocks": 64}
    assert answer["recorded_settings"] == {"num_gpu_blocks": 40}
    figures = {figure["name"]: figure for figure in answer["figures"]}
    assert figures["preemptions"]["recorded"] > figures["preemptions"]["predicted"]
    assert figures["E2E p99"]["unchanged"] > 0
    assert answer["result"]["cut"] == []
    with FileStore(output) as prediction:
        info = prediction.at(prediction.last).info
    assert info is not None
    assert (info.num_gpu_blocks, info.predicted_from) == (64, "run.seqtop")

    assert main(arguments) == 2
    assert "more.seqtop exists already; --force replaces it" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    said = capsys.readouterr().out
    assert "num_gpu_blocks: 40 → 64" in said
    assert "requests that change most:\n  req-" in said
    assert "decisions: the engine's own scheduler, which repeated the recording" in said
    assert "times: at the recorded speed" in said
    assert main(["check", str(output)]) == 0
    assert main(["whatif", str(output)]) == 2
    assert "is a prediction from run.seqtop; use that one" in capsys.readouterr().err


def test_without_a_request_and_at_twice_the_load(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--without", "req-3", "--scale-arrivals", "2", "--arrivals", "time", "--json"]
    assert main(["whatif", recording, *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["num_requests"] == NUM_REQUESTS
    assert all(changed["request_id"] != "req-3" for changed in answer["changed"])
    figures = {figure["name"]: figure for figure in answer["figures"]}
    assert figures["TTFT p90"]["predicted"] > figures["TTFT p90"]["unchanged"]


def test_a_run_of_another_scheduler_does_not_come_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def claim_more_blocks(event: Event) -> Event:
        if isinstance(event, EngineInfo):
            return msgspec.structs.replace(event, num_gpu_blocks=64)
        return event

    path = tmp_path / "run.seqtop"
    record_run(path, claim_more_blocks)
    assert main(["whatif", str(path), "--set", "max_num_seqs=12"]) == 1
    said = capsys.readouterr().out
    assert "  recorded, step " in said
    assert "no prediction, since the recording cannot be repeated; --anyway makes one" in said
    assert main(["whatif", str(path), "--set", "max_num_seqs=12", "--anyway"]) == 1
    assert "a scheduler that does not repeat the recording" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "blocks=3"], "no setting 'blocks': there are block_size"),
        (["--set", "num_gpu_blocks=x"], "num_gpu_blocks is a number or a change such as +20%"),
        (["--set", "num_gpu_blocks=0"], "num_gpu_blocks must be at least 1, got 0"),
        (["--set", "preemption_mode=x"], "preemption_mode must be recompute or swap, got 'x'"),
        (["--without", "nothing"], "the recording has no request 'nothing'"),
        (["--model", "/nonexistent", "--set", "max_num_seqs=9"], "/nonexistent"),
    ],
)
def test_a_question_that_makes_no_sense(
    recording: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", recording, *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def of_another_engine(event: Event) -> Event:
    if isinstance(event, EngineInfo):
        return msgspec.structs.replace(event, engine="nano 1.0")
    return event


def without_the_first_arrivals(event: Event) -> Event | None:
    is_early = isinstance(event, RequestArrived) and event.request_id in ("req-0", "req-1")
    return None if is_early else event


def without_steps(event: Event) -> Event | None:
    return None if isinstance(event, Step) else event


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (redact, "the recording is redacted: without tokens it cannot be replayed"),
        (of_another_engine, "the scheduler of nano 1.0 cannot be run again yet"),
        (without_the_first_arrivals, "sequence 0 belongs to no request"),
        (without_steps, "the recording has no step"),
    ],
)
def test_a_recording_that_cannot_be_replayed(
    change: Callable[[Event], Event | None],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run.seqtop"
    record_run(path, change)
    assert main(["whatif", str(path), "--set", "max_num_seqs=9"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.seqtop"
    path.write_bytes(b"no recording")
    assert main(["whatif", str(path)]) == 2
    assert "run.seqtop" in capsys.readouterr().err
