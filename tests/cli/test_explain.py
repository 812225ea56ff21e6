"""`seqtop explain`."""

import json
from pathlib import Path

import pytest

from seqtop.cli.main import main
from tests.support.broken_recordings import record
from tests.support.diff_runs import payloads
from tests.support.mutants import events


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("explain") / "run.seqtop"
    record(path, tuple(events(payloads())))
    return str(path)


def test_a_request(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", recording, "req-4"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("req-4: TTFT ")
    assert "behind req-3, req-2 in the queue: too few blocks are free" in said
    assert main(["explain", recording, "req-4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = document["parts"]
    assert sum(part["seconds"] for part in parts) == pytest.approx(
        document["e2e_seconds"], abs=0.001
    )
    ttft = sum(part["seconds"] for part in parts if part["before_first_token"])
    assert ttft == pytest.approx(document["ttft_seconds"], abs=0.001)


def test_a_completion_is_found_by_the_id_that_its_client_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A short text of MessagePack begins with its length.
    renamed = [payload.replace(b"\xa5req-4", b"\xa8cmpl-a-0") for payload in payloads()]
    record(tmp_path / "run.seqtop", tuple(events(renamed)))
    assert main(["explain", str(tmp_path / "run.seqtop"), "cmpl-a"]) == 0
    assert capsys.readouterr().out.startswith("cmpl-a-0: TTFT ")


def test_the_requests_that_delayed_another(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", recording, "req-4", "--who"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("req-4: TTFT ")
    assert lines[1].startswith("The run: limited by ")
    assert lines[2].split() == ["time", "share", "measured", "estimated", "charged", "to"]
    assert any("req-1: no free blocks" in line and "max_num_seqs" in line for line in lines)
    assert lines[-1].startswith("Estimated from ")
    assert main(["explain", recording, "req-4", "--who", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert lines[1] == f"The run: {document['verdict']}."
    for charges, seconds in (
        (document["harmed_by"], document["e2e_seconds"]),
        *((harm["charges"], harm["seconds"]) for harm in document["harm_done"]),
    ):
        assert sum(item["seconds"] for item in charges) == pytest.approx(seconds, abs=0.001)
    harms = sum(harm["seconds"] for harm in document["harm_done"])
    assert harms > 0
    assert main(["explain", recording, "--who", "--json"]) == 0
    totals = {item["request_id"]: item for item in json.loads(capsys.readouterr().out)["requests"]}
    assert totals["req-4"]["seconds"] == pytest.approx(harms)
    assert main(["explain", recording, "--who"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:8]] == list(totals)


def test_slow_requests(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", recording, "--slow"]) == 0
    assert "1 slow request of 7: the slowest tenth by E2E\n  req-6: " in capsys.readouterr().out
    assert main(["explain", recording, "--slow", "--by", "ttft"]) == 0
    assert "the slowest tenth by TTFT" in capsys.readouterr().out
    assert main(["explain", recording, "--slow", "--slo", "ttft=0.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {request["request_id"] for request in document["slow"]} == {"req-4", "req-5", "req-6"}
    assert document["num_others"] == 4


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["req-99"], 1, "the recording has no request 'req-99'"),
        ([], 2, "give either the id of a request, or --slow or --cache"),
        (["req-1", "--slow"], 2, "give either the id of a request, or --slow or --cache"),
        (["req-99", "--who"], 1, "the recording has no request 'req-99'"),
        (["--slow", "--who"], 2, "give one of --who, --slow and --cache"),
    ],
)
def test_a_request_that_cannot_be_explained_is_an_error(
    recording: str,
    arguments: list[str],
    status: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", recording, *arguments]) == status
    assert sentence in capsys.readouterr().err


def test_recording_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "/nonexistent", "req-1"]) == 2
    assert "/nonexistent cannot be opened" in capsys.readouterr().err
