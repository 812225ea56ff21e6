"""The commands as a user runs them: each mistake gets one sentence and a sensible exit status."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine_stub.entrypoints.cli import main as engine_main
from seqtop.cli import COMMANDS
from seqtop.cli.main import main
from seqtop.session import Session
from tests.support.waiting import MILLISECONDS, SECONDS

SEQTOP = (sys.executable, "-m", "seqtop")
ENGINE = (sys.executable, "-m", "engine_stub")


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)


def assert_one_sentence(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    for word in words:
        assert word in sentence
    assert done.stdout == ""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """An engine in its own process, with the demo's workload; yields its endpoint."""
    with tempfile.TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{Path(directory, 'e')}"
        process = subprocess.Popen(
            [*ENGINE, "serve", "--demo", "--bind", endpoint, "--device", "cpu"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert "published at" in process.stdout.readline()
        yield endpoint
        process.terminate()
        assert process.wait(SECONDS) == 0


def test_show_json_is_the_state(engine: str) -> None:
    done = run(*SEQTOP, "show", engine, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["engine"]["engine"].startswith("engine_stub")
    assert document["link"]["state"] == "live"
    assert document["requests"][0]["request_id"] == "typed-1"
    assert document["requests"][0]["sequences"][0]["num_prompt_tokens"] > 0


def test_show_text_is_plain(engine: str) -> None:
    done = run(*SEQTOP, "show", engine, "--text")
    assert done.returncode == 0, done.stderr
    assert "typed-1" in done.stdout
    assert "\x1b" not in done.stdout


def test_show_into_a_closed_pipe_is_quiet(engine: str) -> None:
    done = run("sh", "-c", f"{' '.join(SEQTOP)} show {engine} --json | head -n 1")
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_a_closed_pipe_has_its_exit_status(engine: str) -> None:
    closed = run("bash", "-c", f"set -o pipefail; {' '.join(SEQTOP)} show {engine} --json | true")
    assert (closed.returncode, closed.stderr) == (141, "")


def test_unreachable_endpoint() -> None:
    done = run(*SEQTOP, "show", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert_one_sentence(done, 1, "no engine answered at tcp://127.0.0.1:1", "is one running")


@pytest.mark.parametrize("command", ["show", "attach", "check"])
def test_malformed_endpoint(command: str) -> None:
    done = run(*SEQTOP, command, "http://localhost:80")
    assert_one_sentence(done, 2, "'http://localhost:80'", "tcp://HOST:PORT")


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([os.urandom(64)], ("is not a seqtop stream",)),
        ([b"kv@events", bytes(8), b"\x93\x01\x02\x03"], ("is not a seqtop stream",)),
        ([b"seqtop/3/x", bytes(8), b""], ("speaks version 3", "versions 1 to 2")),
    ],
)
def test_foreign_publisher(endpoint: str, frames: list[bytes], words: tuple[str, ...]) -> None:
    with zmq.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind(endpoint)
        viewer = subprocess.Popen(
            [*SEQTOP, "show", endpoint, "--timeout", "30"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert publisher.poll(MILLISECONDS)
        publisher.recv()
        publisher.send_multipart(frames)
        stdout, stderr = viewer.communicate(timeout=SECONDS)
        done = subprocess.CompletedProcess([], viewer.returncode, stdout, stderr)
        assert_one_sentence(done, 1, *words)


def test_app_without_a_terminal(engine: str) -> None:
    assert_one_sentence(run(*SEQTOP, "attach", engine), 1, "needs a terminal", "seqtop show")


def test_check_of_a_running_engine_finds_nothing(engine: str) -> None:
    done = run(*SEQTOP, "check", engine, "--duration", "2")
    assert done.returncode == 0, done.stdout
    assert "0 findings" in done.stdout
    assert ": 0 steps" not in done.stdout


def test_record_then_check_the_recording(engine: str, tmp_path: Path) -> None:
    file = str(tmp_path / "run.seqtop")
    assert run(*SEQTOP, "record", engine, "-o", file, "--duration", "2").returncode == 0
    done = run(*SEQTOP, "check", file, "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["num_steps"] > 0
    assert report["num_gaps"] == 0
    again = run(*SEQTOP, "record", engine, "-o", file, "--duration", "2")
    assert_one_sentence(again, 1, f"{file} exists already; --force replaces it")
    shown = run(*SEQTOP, "show", file, "--json")
    assert json.loads(shown.stdout)["link"]["state"] == "replay"
    assert "typed-1" in run(*SEQTOP, "show", file).stdout


def test_check_of_what_is_not_there() -> None:
    done = run(*SEQTOP, "check", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert_one_sentence(done, 1, "no engine answered")
    assert_one_sentence(run(*SEQTOP, "check", "/nonexistent"), 1, "/nonexistent")


def test_port_in_use() -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=60_000)
        endpoint = f"tcp://127.0.0.1:{port}"
        done = run(*ENGINE, "serve", "--bind", endpoint, "--device", "cpu")
        assert_one_sentence(done, 1, endpoint, "already in use", "--bind")


def test_keys_open_an_engine_to_their_holders_alone(tmp_path: Path) -> None:
    for name in ("engine", "viewers", "stranger"):
        done = run(*SEQTOP, "keygen", "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert f"{name}.key_secret: the secret key, for you alone" in done.stdout
    assert_one_sentence(run(*SEQTOP, "keygen", "-o", str(tmp_path / "engine")), 1, "exists already")
    endpoint = f"ipc://{tmp_path}/e"
    process = subprocess.Popen(
        [
            *ENGINE, "serve", "--demo", "--bind", endpoint, "--device", "cpu",
            "--server-secret-key", str(tmp_path / "engine.key_secret"),
            "--authorized-clients", str(tmp_path / "viewers.key"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "published at" in process.stdout.readline()
        public, mine = str(tmp_path / "engine.key"), "--client-key YOURS.key_secret"
        assert f"seqtop attach {endpoint} --server-key {public} {mine}" in process.stdout.readline()
        keys = ("--server-key", str(tmp_path / "engine.key"), "--client-key")
        done = run(*SEQTOP, "show", endpoint, *keys, str(tmp_path / "viewers.key_secret"))
        assert "typed-1" in done.stdout, done.stderr
        done = run(*SEQTOP, "show", endpoint, *keys, str(tmp_path / "stranger.key_secret"))
        assert_one_sentence(done, 1, "refused this viewer's key")
        assert_one_sentence(run(*SEQTOP, "check", endpoint), 1, "expects --server-key")
        half = run(*SEQTOP, "record", endpoint, "-o", "/dev/null", *keys[:2])
        assert_one_sentence(half, 2, "belong together")
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0


def test_engine_refuses_to_bind_in_the_open_unasked() -> None:
    done = run(*ENGINE, "serve", "--bind", "tcp://0.0.0.0:5557")
    assert_one_sentence(done, 2, "can be reached from other machines", "--insecure")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nonexistent"], ("/nonexistent",)),
        (["--block-size", "0"], ("block_size",)),
        (["--device", "abacus"], ("abacus",)),
        (["--max-model-len", "1000000"], ("max_model_len",)),
    ],
)
def test_engine_that_cannot_start(arguments: list[str], words: tuple[str, ...]) -> None:
    assert_one_sentence(run(*ENGINE, "serve", *arguments), 1, *words)


def test_demo_says_why_its_engine_did_not_start() -> None:
    done = run(*SEQTOP, "demo", "--model", "/nonexistent")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("seqtop: the bundled engine ended:")
    assert "/nonexistent" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "command", "words"),
    [
        (["show", "--jsn"], "seqtop show", ("'--jsn', perhaps --json",)),
        (["show", "--bogus"], "seqtop show", ("unrecognised argument '--bogus';",)),
        (["record", "-o", "x", "--durations=3"], "seqtop record", ("perhaps --duration",)),
        (["check", "a", "b"], "seqtop check", ("unrecognised argument 'b'",)),
        (["--verison", "show"], "seqtop", ("perhaps --version",)),
        (["replay"], "seqtop replay", ("FILE",)),
        ([], "seqtop", ("COMMAND",)),
        (["serve", "replay", "x", "--loop"], "seqtop serve", ("'--loop': options", "go after --")),
        (
            ["show", "--timeout", "-1"],
            "seqtop show",
            ("--timeout: '-1' is not a number from 0 on",),
        ),
        (["check", "--timeout", "nan"], "seqtop check", ("'nan' is not a number from 0 on",)),
        (["demo", "--pace", "-3"], "seqtop demo", ("--pace: '-3' is not a number from 0 on",)),
        (["show", "--filter", "foo>3"], "seqtop show", ("no field 'foo': there are request, seq",)),
        (["attach", "--filter", "foo>3"], "seqtop attach", ("no field 'foo': there are request",)),
        (["show", "--filter", "promt>3"], "seqtop show", ("no field 'promt': perhaps prompt;",)),
    ],
)
def test_wrong_usage_is_one_sentence_of_the_command_meant(
    arguments: list[str], command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{command}: ")
    assert said.endswith(f"; see {command} --help")
    for word in words:
        assert word in said


def test_every_without_follow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "run.seqtop", "--every", "3"]) == 2
    assert capsys.readouterr().err == "seqtop: --every needs --follow\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--http", "0.0.0.0:8000"], ("--http 0.0.0.0:8000 can be", "no authentication")),
        (["--http", "example.org:8000"], ("can be reached from other machines",)),
        (["--http", "8000"], ("--http '8000' is no HOST:PORT, such as 127.0.0.1:8000",)),
        (["--http", "http://127.0.0.1:8000"], ("is no HOST:PORT",)),
        (["--http", "127.0.0.1:0"], ("is no HOST:PORT",)),
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


def test_a_mistyped_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atach", "tcp://127.0.0.1:5557"]) == 2
    said = capsys.readouterr().err
    assert said == "seqtop: no command 'atach', perhaps attach; seqtop --help lists them all\n"


def test_help_has_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "exit status:" in said
    for status in ("0", "1", "2", "3", "130", "141"):
        assert f"\n  {status} " in said


def test_ranks_are_engines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def run_app(sources: list[Session], options: object) -> int:
        shown.extend(source.link.endpoint for source in sources)
        return 0

    monkeypatch.setattr("seqtop.cli.attach.run_app", run_app)
    assert main(["attach", "--ranks", "2", "tcp://127.0.0.1:7001", "ipc:///tmp/none"]) == 0
    assert shown == [
        "tcp://127.0.0.1:7001",
        "tcp://127.0.0.1:7003",
        "ipc:///tmp/none",
        "ipc:///tmp/none.dp1",
    ]
