"""Every setting of an engine can be given on the command line."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import zmq

from engine_stub.config import EngineConfig
from engine_stub.entrypoints.cli import _parser
from engine_stub.entrypoints.cli import main as engine_main
from seqtop.checks.report import check_recording
from seqtop.cli.main import main
from tests.support.commands import ENGINE, assert_one_sentence, run
from tests.support.waiting import wait_until


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineConfig)])
def test_every_setting_is_an_option(name: str) -> None:
    options = _parser().parse_args(["serve"])
    assert getattr(options, name) is None


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=60_000)
        endpoint = f"tcp://127.0.0.1:{port}"
        assert engine_main(["serve", "--bind", endpoint, "--device", "cpu"]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert all(word in sentence for word in (endpoint, "already in use", "--bind"))


def test_engine_refuses_to_bind_in_the_open_unasked() -> None:
    done = run(*ENGINE, "serve", "--bind", "tcp://0.0.0.0:5557")
    assert_one_sentence(done, 2, "can be reached from other machines", "--insecure")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--block-size", "0"], ("block_size",)),
        (["--device", "abacus"], ("abacus",)),
        (["--max-model-len", "1000000"], ("max_model_len",)),
    ],
)
def test_engine_that_cannot_start(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert engine_main(["serve", *arguments]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert all(word in sentence for word in words)


def test_engine_without_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before torch is imported, which takes seconds."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert engine_main(["serve", "--model", "/nonexistent"]) == 1
    assert capsys.readouterr().err == "engine-stub: there is no model directory /nonexistent\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http", "0.0.0.0:8000"], ("--http 0.0.0.0:8000 can be", "no authentication")),
        (["--http", "example.org:8000"], ("can be reached from other machines",)),
        (
            ["--http", "8000"],
            ("--http '8000' is not of the form HOST:PORT, such as 127.0.0.1:8000",),
        ),
        (["--http", "http://127.0.0.1:8000"], ("is not of the form HOST:PORT",)),
        (["--http", "127.0.0.1:0"], ("is not of the form HOST:PORT",)),
    ],
)
def test_http_in_the_open_or_nowhere(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert engine_main(["serve", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("engine-stub: ")
    for word in words:
        assert word in said
    assert "tcp://" not in said
    assert "key" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--modle", "x"], ("engine-stub serve: ", "'--modle', perhaps --model;")),
        (["serve", "--pace", "-3"], ("--pace: '-3' is not a number from 0 on",)),
        (["sevre"], ("engine-stub: ", "'sevre'", "engine-stub --help")),
    ],
)
def test_the_engine_has_the_same_manners(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        engine_main(arguments)
    assert exit_.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    for word in words:
        assert word in said


def test_models_are_described_in_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    described = []
    for help_of in (lambda: main(["demo", "--help"]), lambda: engine_main(["serve", "--help"])):
        with pytest.raises(SystemExit):
            help_of()
        words = " ".join(capsys.readouterr().out.split())
        described.append(words[words.index("--model MODEL ") :].partition("(default")[0])
    assert described[0] == described[1]
    assert "Hugging Face Hub" in described[0]


def test_an_error_of_a_step_ends_the_engine_with_a_sentence_and_a_flight_record(
    endpoint: str, tmp_path: Path
) -> None:
    records, errors = tmp_path / "flight records", tmp_path / "errors"
    program = f"""
import os, sys
from pathlib import Path
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.cli import main
from tests.support.waiting import wait_until

errors = Path({str(errors)!r})
os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
original = LLMEngine.step

def step(self):
    wait_until(lambda: "the flight recorder of" in errors.read_text())
    record = original(self)
    if record.step == 60:
        raise RuntimeError("no such step")
    return record

LLMEngine.step = step
arguments = ["--demo", "--device", "cpu", "--pace", "30", "--bind", {endpoint!r}]
arguments += ["--flight-recorder", {str(records)!r}, "--flight-recorder-options=--no-redact"]
status = main(["serve", *arguments])
if "torch._dynamo" in sys.modules:  # its import takes longer than all else of the start
    raise SystemExit(99)
raise SystemExit(status)
"""
    done = run(sys.executable, "-c", program)
    assert done.returncode == 1
    # The engine does not wait for its recorder.
    wait_until(lambda: "; recorded in " in errors.read_text())
    said = errors.read_text()
    assert "engine-stub: the engine has stopped: RuntimeError: no such step\n" in said
    (path,) = records.glob("*.json")
    verdict = json.loads(path.read_text())
    assert (verdict["cause"], verdict["step"], verdict["redacted"]) == ("failed", 59, False)
    assert verdict["message"].startswith("the engine has failed with RuntimeError; see its log;")
    assert check_recording(path.with_suffix(".seqtop")).findings == []
