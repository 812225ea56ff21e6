"""Options as they are typed, and what follows from them: an engine, its viewers, a recorder."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from seqtop.history import FileStore
from seqtop.state import EngineState
from seqtop.transport import curve_keys
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec
from seqtop.wire.messages import SnapshotRequest
from tests.support.commands import ENGINE, SEQTOP, run
from tests.support.forked import start
from tests.support.recordings import unpacked
from tests.support.terminal import Terminal
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until

PROMPT = "The quixotic xylophone hums a hymn of zinc"


@dataclass(frozen=True)
class Place:
    """A folder of keys, and an engine that admits two of them; one may control it."""

    folder: Path
    endpoint: str

    def keys_of(self, name: str) -> tuple[str, ...]:
        own = str(self.folder / f"{name}.key_secret")
        return "--server-key", str(self.folder / "engine.key"), "--client-key", own

    @contextlib.contextmanager
    def recorder(self, name: str, file: Path) -> Iterator[None]:
        """Records to `file` meanwhile."""
        with start(
            [*SEQTOP, "record", self.endpoint, "-o", str(file), *self.keys_of(name)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                wait_until(lambda: file.exists() and file.stat().st_size > 26)  # a keyframe
                yield
            finally:
                process.terminate()
        assert process.returncode == 0

    @contextlib.contextmanager
    def app(self, name: str) -> Iterator[Terminal]:
        command = ("-m", "seqtop", "attach", self.endpoint, *self.keys_of(name))
        terminal = Terminal(sys.executable, *command)
        try:
            terminal.wait_until(lambda: "LIVE" in terminal.text)
            yield terminal
        finally:
            terminal.close()


@pytest.fixture
def place(endpoint: str, tmp_path: Path) -> Iterator[Place]:
    for name in ("engine", "onlooker", "controller"):
        assert run(*SEQTOP, "keygen", "-o", str(tmp_path / name)).returncode == 0
    (tmp_path / "viewers").mkdir()
    for name in ("onlooker", "controller"):
        shutil.copy(tmp_path / f"{name}.key", tmp_path / "viewers")
    options = ["--bind", endpoint, "--device", "cpu", "--threads", "1", "--redact"]
    options += ["--control", "--name", "night-shift"]
    options += ["--server-secret-key", "engine.key_secret", "--authorized-clients", "viewers"]
    options += ["--control-clients", "controller.key"]
    with start(
        [*ENGINE, "serve", *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "published at" in process.stdout.readline()
        yield Place(tmp_path, endpoint)
        process.terminate()
        assert process.wait(SECONDS) == 0


def test_a_redacted_engine_that_one_of_two_viewers_may_control(place: Place) -> None:
    """`serve --redact --name --control-clients`, and a prompt that is typed into the app."""
    own = curve_keys.viewer_keys(
        str(place.folder / "engine.key"), place.folder / "onlooker.key_secret"
    )
    file = place.folder / "run.seqtop"
    with zmq.Context() as context, context.socket(zmq.SUB) as live:
        own.secure(live)
        live.subscribe(b"")
        live.connect(place.endpoint)
        assert live.poll(MILLISECONDS)  # the welcome message: from now on nothing is missed
        with place.recorder("onlooker", file):
            with place.app("onlooker") as app:
                app.press("n")
                app.wait_until(lambda: "New request" in app.text)
                app.press(f"{PROMPT}\r")
                app.wait_until(lambda: "Not submitted" in app.text and "may view" in app.text)
            with place.app("controller") as app:
                app.press("n")
                app.wait_until(lambda: "New request" in app.text)
                app.press(f"{PROMPT}\r")
                app.wait_until(lambda: "redacted" in app.text)
                app.wait_until(lambda: re.search(r"\b(length|stop)\b", app.text))
                assert PROMPT.split()[1] not in app.text
            document = run(
                *SEQTOP, "show", "--json", place.endpoint, *place.keys_of("onlooker")
            ).stdout
            with context.socket(zmq.DEALER) as requests:
                own.secure(requests)
                requests.connect(snapshot_endpoint(place.endpoint))
                requests.send(codec.encode(SnapshotRequest()))
                assert requests.poll(MILLISECONDS)
                published = b"".join(requests.recv_multipart())
            while live.poll(0):
                published += b"".join(live.recv_multipart())

    shown = json.loads(document)
    assert shown["engine"]["engine_id"] == "night-shift"
    assert shown["engine"]["redacted"]
    (request,) = shown["requests"]
    (sequence,) = request["sequences"]
    assert request["prompt"] is None
    assert (sequence["text"], sequence["num_prompt_tokens"] > 5) == ("", True)
    for data in (published, unpacked(file), document.encode()):
        assert request["request_id"].encode() in data
        assert not re.findall(b"quixotic|xylophone|hymn|zinc", data)


def test_a_recorder_redacts_an_engine_that_does_not(engine: str, tmp_path: Path) -> None:
    """`record --redact`."""
    prompts, words = set[str](), set[bytes]()
    public = " ".join(EngineState.__struct_fields__)
    """All that stays in a redacted recording, such as ids and names of fields."""

    def has_noted_words() -> bool:
        nonlocal public
        shown = json.loads(run(*SEQTOP, "show", "--json", engine).stdout)
        for request in shown["requests"]:
            texts = [
                request.pop("prompt"),
                *(sequence.pop("text") for sequence in request["sequences"]),
            ]
            prompts.add(texts[0])
            words.update(word.encode() for text in texts for word in re.findall(r"\w{6,}", text))
        public += json.dumps(shown)
        return len(prompts) > 2 and len(words) > 20

    wait_until(has_noted_words)
    files = {}
    for option in ("--redact", "--force"):
        files[option] = tmp_path / f"run{option}.seqtop"
        done = run(*SEQTOP, "record", engine, "-o", str(files[option]), option, "--duration", "1")
        assert done.returncode == 0, done.stderr
        assert has_noted_words()  # of what was written meanwhile too
    words -= {word for word in words if word.decode() in public}  # `shared-1`, `blocked`
    assert len(words) > 20
    words_of = {option: [w for w in words if w in unpacked(file)] for option, file in files.items()}
    assert not words_of["--redact"]
    assert words_of["--force"], "what is not redacted is there"
    with FileStore(files["--redact"]) as recording:
        state = recording.at(recording.last)
        assert state.info is not None
        assert state.info.redacted
        assert any(sequence.output_token_ids for sequence in state.sequences.values()), (
            "their number stays"
        )


def test_objectives_of_the_command_line(recording: str) -> None:
    """`--slo`: the requests over it are marked, and the goodput is of those within it."""
    command = ("-m", "seqtop", "replay", recording, "--at", "79", "--slo", "e2e=1ms,ttft=9999")
    app = Terminal(sys.executable, *command, size=(160, 50))
    try:
        app.wait_until(lambda: "Request" in app.text)
        app.press("l")
        app.wait_until(lambda: "TTFT ≤ " in app.text and "E2E ≤ 1.00 ms" in app.text)
        app.wait_until(lambda: re.search(r"Goodput +0%.* 0 of [1-9]\d* ended", app.text))
    finally:
        app.close()
