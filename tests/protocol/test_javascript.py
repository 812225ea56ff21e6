"""A viewer and a publisher in JavaScript, which know only the page, hold to the contract."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from docs.make_protocol import SCHEMA_PATH
from seqtop.checks.live_report import check_protocol
from seqtop.checks.report import Report
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec, frames
from seqtop.wire.messages import Command, SnapshotRequest
from tests.support.protocol_examples import FOLDER, plain
from tests.support.stored_run import MISSED, scripts
from tests.support.waiting import MILLISECONDS, SECONDS

pytestmark = [
    pytest.mark.release("installs packages of npm"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node and npm are not installed"),
]

ROOT = Path(__file__).parents[2]
Node = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs and the packages that they import."""
    folder = tmp_path_factory.mktemp("node")
    here = Path(__file__).parent
    for file in (*ROOT.glob("docs/*.mjs"), here / "javascript.mjs", here / "package.json"):
        shutil.copy(file, folder)
    subprocess.run(["npm", "install", "--no-fund", "--no-audit"], cwd=folder, check=True)
    return folder


@pytest.fixture
def node(folder: Path) -> Node:
    """Runs `javascript.mjs` and returns what it has printed."""

    def run(*arguments: str | Path) -> list[Any]:
        command = ["node", "javascript.mjs", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True, timeout=SECONDS
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def stored_lines(name: str) -> list[Any]:
    text = (FOLDER / "streams" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_messages_are_the_same_json_in_node_and_python(node: Node) -> None:
    decoded = dict(node("decode", FOLDER / "messages"))
    paths = list(FOLDER.glob("messages/*.json"))
    assert {path.stem for path in paths} == decoded.keys()
    for path in paths:
        payload = path.with_suffix(".msgpack").read_bytes()
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert decoded[path.stem] == plain(payload) == stored, path.name


@pytest.mark.parametrize("name", scripts())
def test_a_stream_leads_to_the_stored_states(node: Node, name: str) -> None:
    reached = node("states", FOLDER / "streams" / f"{name}.msgpack")
    assert [message for message, _ in reached] == stored_lines(f"{name}.jsonl")
    assert [state for _, state in reached] == stored_lines(f"{name}.states.jsonl")


def test_the_schema_accepts_each_message_and_refuses_others(node: Node) -> None:
    results = node("validate", SCHEMA_PATH, FOLDER / "messages")
    assert len(results) > 20
    for name, is_valid, is_valid_when_broken in results:
        assert is_valid, name
        assert not is_valid_when_broken, name


class Engine:
    """The sockets of an engine, whose messages and replies a test sends one by one."""

    def __init__(self, endpoint: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.live, self.router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.live.setsockopt(zmq.XPUB_WELCOME_MSG, frames.topic("one"))
        self.live.bind(endpoint)
        self.router.bind(snapshot_endpoint(endpoint))

    def send(self, number: int, payload: bytes) -> None:
        self.live.send_multipart(frames.pack("one", number, payload))

    def await_subscription(self) -> None:
        assert self.live.poll(MILLISECONDS)
        self.live.recv()

    def await_request(self) -> None:
        assert self.router.poll(MILLISECONDS)
        self.viewer, request = self.router.recv_multipart()
        assert codec.decode(request, Command) == SnapshotRequest(with_parts=True)  # type: ignore[arg-type]

    def reply(self, next_number: int, payload: bytes) -> None:
        self.router.send_multipart([self.viewer, *frames.pack("one", next_number, payload)])


@contextmanager
def following(folder: Path, endpoint: str) -> Iterator[subprocess.Popen[str]]:
    command = ["node", "javascript.mjs", "follow", endpoint]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_viewer_joins_late_and_repairs_a_gap(folder: Path, endpoint: str) -> None:
    """It gets a snapshot in parts after a lost message, and messages that are older than it."""
    payloads = [codec.encode(event) for event in scripts()["one"]]
    states = stored_lines("one.states.jsonl")
    whole = codec.decode((FOLDER / "streams" / "one.snapshot.msgpack").read_bytes(), list[Any])
    requests = whole[4]
    empty: list[Any] = ["Snapshot", 1.0, -1, None, [], None, None]
    with zmq.Context() as context, following(folder, endpoint) as viewer:
        engine = Engine(endpoint, context)
        engine.await_subscription()
        engine.await_request()
        engine.reply(0, codec.encode(empty))
        for number in range(5):
            engine.send(number, payloads[number])
        for number in range(6, MISSED + 3):  # the sixth is lost
            engine.send(number, payloads[number])
        engine.await_request()
        head = [*whole[:4], requests[:1], *whole[5:8], True]
        engine.reply(MISSED + 1, codec.encode(head))
        for index, request in enumerate(requests[1:]):
            is_last = index == len(requests) - 2
            part = ["SnapshotPart", index, is_last, [request], []]
            engine.reply(MISSED + 1, codec.encode(part))
        for number in range(MISSED + 3, len(payloads)):
            engine.send(number, payloads[number])
        output, _ = viewer.communicate(timeout=SECONDS)
        engine.live.close(0)
        engine.router.close(0)
    shown = [json.loads(line) for line in output.splitlines()]
    assert shown[1:] == [*states[:5], *states[MISSED:]]
    assert viewer.returncode == 0


def test_the_publisher_makes_no_mistake(folder: Path, endpoint: str) -> None:
    reports: list[Report] = []

    def check() -> None:
        ended = threading.Event()
        reports.append(check_protocol(endpoint, ended=ended, duration=SECONDS, timeout=SECONDS))

    checking = threading.Thread(target=check)
    checking.start()
    command = ["node", "example_publisher.mjs", endpoint, "8"]
    subprocess.run(command, cwd=folder, check=True, timeout=SECONDS)
    checking.join()
    (report,) = reports
    assert report.as_text().endswith("0 findings")
    assert report.num_steps > 50
    assert report.num_snapshots
