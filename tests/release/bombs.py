"""Measures how much memory programs take for messages and recordings that say much in few bytes.

Each bomb is a list of messages. A publisher by hand sends them to `seqtop record` and to the app,
and a recording of them is given to `show`, `check` and the app. The figures are the most memory
(`VmHWM`) that each program has taken, in MB, beside the bytes of the messages and of the recording.

    python -m tests.release bombs [NAME…]
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import zmq

from seqtop.history import FileWriter, segments
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.snapshot import take
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec, frames
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    CachedBlocks,
    Chunk,
    Event,
    Heartbeat,
    RequestFinished,
    Step,
)
from tests.support.events import arrival, engine_info, preemption, step, update, wait_reason
from tests.support.kv_publisher import KvPublisher, batch, removed, stored
from tests.support.terminal import Terminal
from tests.support.waiting import SECONDS

LAST = 4_242
"""The number of the last step of each bomb."""
_MAX_MEMORY = 8 * 2**30
_RUNNING = SequenceStatus.RUNNING


def _forks(tokens: int, text: int, count: int) -> Iterator[Event]:
    """Rows of a few bytes, each of which copies the output of its parent."""
    yield arrival(1)
    output = update(1, tokens=[7] * tokens, text="x" * text, status=_RUNNING)
    yield step(0, execute=None, sequences=[output])
    for number in range(2, 7):
        yield arrival(number)
    forks = [
        update(seq_id, request_id=f"req-{seq_id % 5 + 2}", parent=1, tokens=[8], text="y")
        for seq_id in range(10, 10 + count)
    ]
    yield step(1, execute=None, sequences=forks)
    yield step(2, execute=None, sequences=forks)


def _sequences(count: int) -> Iterator[Event]:
    yield msgspec.structs.replace(arrival(1), seq_ids=list(range(count)))


def _parents(count: int) -> Iterator[Event]:
    """Sequences of one request, each of which is a child of the next."""
    yield msgspec.structs.replace(arrival(1), seq_ids=[0])
    rows = [update(i, request_id="req-1", parent=i + 1) for i in range(1, count)]
    yield step(0, execute=None, sequences=rows)


def _wait_reasons(num_sequences: int, num_reasons: int) -> Iterator[Event]:
    """Reasons that name the same request with many sequences."""
    yield from _sequences(num_sequences)
    reason = wait_reason("req-1", "no_blocks")
    yield step(0, wait_reasons=[reason] * num_reasons)


def _ended_chunks(count: int) -> Iterator[Event]:
    """Chunks of a request whose sequences have all ended, each of which looks at all of them."""
    metrics = RequestMetrics(1.0, 1.0, None, None, None, finished_time=2.0)
    yield msgspec.structs.replace(arrival(1), seq_ids=list(range(count)), metrics=metrics)
    ended = [update(i, SequenceStatus.FINISHED_STOPPED) for i in range(count)]
    yield step(0, execute=None, sequences=ended)
    rows = [update(i, request_id="req-1", chunk=Chunk(1, 0)) for i in range(count)]
    yield step(1, execute=None, sequences=rows)


def _removals(count: int) -> Iterator[Event]:
    yield from _sequences(count)
    removed = [update(i, is_removed=True) for i in reversed(range(count))]
    yield step(0, execute=None, sequences=removed)


def _cached_blocks(count: int) -> Iterator[Event]:
    yield arrival(1)
    for number in range(4):
        blocks = list(range(number * count, (number + 1) * count))
        yield step(number, newly_cached_blocks=[CachedBlocks("req-1", 1, 0, blocks)])


def _tables(count: int) -> Iterator[Event]:
    yield arrival(1)
    yield step(0, execute=None, sequences=[update(1, table=list(range(count)))])


def _groups(count: int) -> Iterator[Event]:
    yield arrival(1)
    yield step(0, execute=None, sequences=[update(1, group_block_tables=[[]] * count)])


def _candidates(count: int) -> Iterator[Event]:
    """Empty candidates of tokens: an object each."""
    yield arrival(1)
    row = update(1, tokens=[1] * count, top_logprobs=[{}] * count)
    yield step(0, execute=None, sequences=[row])


def _preemptions(count: int) -> Iterator[Event]:
    yield arrival(1)
    yield step(0, preemptions=[preemption("req-1", lost=1)] * count)


def _requests(count: int) -> Iterator[Event]:
    for number in range(count):
        yield msgspec.structs.replace(arrival(number), prompt=None, prompt_token_ids=Ints.of([]))


def _names(count: int) -> Iterator[Event]:
    for number in range(count):
        yield msgspec.structs.replace(
            arrival(number), request_id=f"{number:04096}", lora="x" * 4096
        )


def _texts() -> Iterator[Event]:
    yield msgspec.structs.replace(arrival(1), prompt="狐" * (20 * 2**20))


def _ended(tokens: int, count: int) -> Iterator[Event]:
    """Steps that change a request with a long output that has ended: each copies it."""
    yield arrival(1)
    output = update(1, tokens=[7] * tokens, status=_RUNNING)
    yield step(0, execute=None, sequences=[output])
    metrics = RequestMetrics(1.0, 1.0, None, None, None)
    yield RequestFinished("req-1", 2.0, SequenceStatus.FINISHED_STOPPED, metrics)
    for number in range(1, count):
        yield step(number, metrics={"req-1": metrics})


def _nested(depth: int) -> Iterator[bytes]:
    yield b"\x91" * depth + b"\xc0"


BOMBS: dict[str, Callable[[], Iterator[Event | bytes]]] = {
    "nothing": lambda: iter([arrival(1)]),
    "forks of 200,000 tokens": lambda: _forks(200_000, 0, 2_500),
    "forks of 4,000,000 characters": lambda: _forks(1, 4_000_000, 2_500),
    "1,000,000 sequences of a request": lambda: _sequences(1_000_000),
    "a chain of 100,000 forks": lambda: _parents(100_000),
    "reasons for many sequences": lambda: _wait_reasons(20_000, 20_000),
    "chunks of many sequences": lambda: _ended_chunks(30_000),
    "100,000 removals": lambda: _removals(100_000),
    "4,000,000 cached blocks": lambda: _cached_blocks(1_000_000),
    "a table of 1,000,000 blocks": lambda: _tables(1_000_000),
    "1,000,000 groups": lambda: _groups(1_000_000),
    "500,000 empty candidates": lambda: _candidates(500_000),
    "200,000 preemptions": lambda: _preemptions(200_000),
    "50,000 requests": lambda: _requests(50_000),
    "names of 4,096 characters": lambda: _names(2_000),
    "a text of 60 MB": _texts,
    "steps after an end": lambda: _ended(1_000_000, 500),
    "1,000,000 nested arrays": lambda: _nested(1_000_000),
}

KV_BOMBS: dict[str, Callable[[], list[bytes]]] = {
    "KV: nothing": lambda: [batch(stored([1]))],
    "KV: 1,000,000 blocks of a token": lambda: [
        batch(stored(range(start, start + 100_000), size=1)) for start in range(0, 10**6, 100_000)
    ],
    "KV: blocks in 100,000 tiers": lambda: [
        batch(*[stored([number], size=1, medium=f"{number:0256}") for number in range(100_000)])
    ],
    "KV: 400,000 kinds of events": lambda: [
        batch(*[[f"{start}-{number}"] for number in range(100_000)]) for start in range(4)
    ],
    "KV: 100,000 trees merged into one": lambda: [
        batch(*[stored([number], number + 1, size=1) for number in range(100_000)])
    ],
    "KV: 1,000,000 unknown removals": lambda: [batch(removed(range(250_000))) for _ in range(4)],
}

_PROGRAM = """
import atexit, resource, sys
from pathlib import Path

def write():
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    Path(sys.argv[1]).write_text(peak)

atexit.register(write)
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from seqtop.cli.main import main
sys.exit(main(sys.argv[3:]))
"""


class Bomb(NamedTuple):
    """The messages of a bomb, and the recording of them."""

    payloads: list[bytes]
    recording: Path


def make(name: str, directory: Path) -> Bomb:
    """Encodes a bomb, and records it without applying it: its keyframe is the empty state."""
    events = [engine_info(), *BOMBS[name](), step(LAST)]
    payloads = [event if isinstance(event, bytes) else codec.encode(event) for event in events]
    path, state = directory / "bomb.seqtop", EngineState()
    with patch.multiple(segments, SEGMENT_BYTES=2**40), FileWriter(path, overwrite=True) as writer:
        writer.restore("one", -1, state)
        for number, (event, payload) in enumerate(zip(events, payloads, strict=True)):
            state.step = event.step if isinstance(event, Step) else state.step
            kind = step(0) if isinstance(event, bytes) else event
            writer.append(number, payload, kind, state)
    return Bomb(payloads, path)


class Publisher:
    """Publishes messages by hand, so that it does not read them itself; a context manager."""

    def __init__(self, endpoint: str, payloads: Sequence[bytes]) -> None:
        self._payloads = payloads
        self._number = 0
        self._may_send, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(endpoint,))
        self._thread.start()

    def send(self) -> None:
        """Sends the messages, and heartbeats after them."""
        self._may_send.set()

    def _run(self, endpoint: str) -> None:
        before, after = EngineState(), EngineState()
        after.apply(engine_info())
        after.apply(step(LAST))
        with zmq.Context() as context:
            live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
            live.sndhwm = live.linger = router.linger = 0
            live.bind(endpoint)
            router.bind(snapshot_endpoint(endpoint))
            while not self._ended.wait(0.05):
                if live.poll(0):
                    live.recv()
                    live.send_multipart([frames.topic("one")])
                if router.poll(0):
                    identity, *_ = router.recv_multipart()
                    snapshot = codec.encode(take(after if self._number else before))
                    router.send_multipart([identity, *frames.pack("one", self._number, snapshot)])
                if self._may_send.is_set():
                    heartbeat = codec.encode(Heartbeat(time=1e3, step=LAST))
                    for payload in [heartbeat] if self._number else self._payloads:
                        live.send_multipart(frames.pack("one", self._number, payload))
                        self._number += 1
            live.close()
            router.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class Program:
    """The command `seqtop` with arguments, on a terminal; a context manager."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._peak = directory / "peak"
        self._peak.unlink(missing_ok=True)
        program = [sys.executable, "-c", _PROGRAM, str(self._peak), str(_MAX_MEMORY)]
        self.terminal = Terminal(*program, *arguments, cwd=directory)

    def peak(self) -> str:
        """Waits for the end of the program, and returns the most memory that it has taken."""
        try:
            self.terminal.wait_until(lambda: self.terminal.process.poll() is not None)
        except AssertionError:
            return self.endless()
        status = self.terminal.process.returncode
        return _megabytes(self._peak.read_text(), _remark(status))

    def endless(self) -> str:
        """Returns the most memory so far of a program that does not do what it is waited for."""
        status = Path(f"/proc/{self.terminal.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return _megabytes(found[1], "no end") if found else "no end"

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminal.close()


def _remark(status: int) -> str:
    """Returns a remark about an exit status that is not one of those that are promised."""
    return "" if status in (0, 1, 2, 3) else f"status {status}"


def _megabytes(kilobytes: str, remark: str) -> str:
    return f"{int(kilobytes) / 1_000:,.0f}" + (f" ({remark})" if remark else "")


def _printed(directory: Path, *arguments: str) -> str:
    """Returns the memory of a command that prints something and ends."""
    peak = directory / "peak"
    peak.unlink(missing_ok=True)
    program = [sys.executable, "-c", _PROGRAM, str(peak), str(_MAX_MEMORY), *arguments]
    try:
        done = subprocess.run(program, capture_output=True, timeout=2 * SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "no end"
    return _megabytes(peak.read_text(), _remark(done.returncode))


def _recorded(directory: Path, bomb: Bomb) -> str:
    """Returns the memory of `seqtop record`."""
    endpoint = f"ipc://{directory}/e"
    with (
        Publisher(endpoint, bomb.payloads) as publisher,
        Program(directory, "record", endpoint, "-o", "out", "--force") as program,
    ):
        terminal = program.terminal
        terminal.wait_until(lambda: "live; Ctrl-C" in terminal.text)
        publisher.send()

        def has_all() -> bool:
            shown = re.search(r"([\d,]+) messages, .* bytes, ([\d,]+) gaps", terminal.text)
            return shown is not None and (
                int(shown[1].replace(",", "")) > len(bomb.payloads) or shown[2] != "0"
            )

        try:
            terminal.wait_until(has_all)
        except AssertionError:
            return program.endless()
        os.kill(terminal.process.pid, signal.SIGINT)
        return program.peak()


def _shown(program: Program, keys: str) -> str:
    """Returns the memory of the app, whose screens are opened when it shows the last step."""
    terminal = program.terminal
    try:
        terminal.wait_until(
            lambda: f"{LAST:,}" in terminal.text or terminal.process.poll() is not None
        )
        if terminal.process.poll() is not None:  # there is no such step, as it cannot be read
            return program.peak()
        for key in keys:
            terminal.press(key)
            for _ in range(10):
                terminal.read(0.1)
    except AssertionError:
        return program.endless()
    terminal.press("q")
    return program.peak()


def _attached(directory: Path, bomb: Bomb) -> str:
    """Returns the memory of the app of a live engine."""
    endpoint = f"ipc://{directory}/e"
    with (
        Publisher(endpoint, bomb.payloads) as publisher,
        Program(directory, "attach", endpoint) as program,
    ):
        program.terminal.wait_until(lambda: "live" in program.terminal.text.lower())
        publisher.send()
        return _shown(program, _KEYS)


def _replayed(directory: Path, bomb: Bomb) -> str:
    """Returns the memory of the app of a recording."""
    with Program(directory, "replay", str(bomb.recording), "--at", str(LAST)) as program:
        return _shown(program, _KEYS)


_KEYS = "t234561d"
"""The keys that open the screens."""


def _of_kv_events(name: str, directory: Path) -> list[str]:
    """Returns the row of a bomb of KV-cache events, which are shown and not recorded."""
    payloads = KV_BOMBS[name]()
    endpoint, replay = f"ipc://{directory}/e", f"ipc://{directory}/r"
    options = ["--kv-events", endpoint, "--replay", replay]
    ended = threading.Event()
    with KvPublisher(endpoint, replay) as publisher:
        for payload in payloads:
            publisher.send_payload(payload, lose=True)

        def answer() -> None:
            assert publisher.router is not None
            while not ended.wait(0.05):
                if publisher.router.poll(0):
                    publisher.answer()

        thread = threading.Thread(target=answer)
        thread.start()
        shown = _printed(directory, "show", "--json", *options)
        with Program(directory, "attach", *options) as program:
            terminal = program.terminal
            terminal.wait_until(lambda: "LIVE" in terminal.text)
            for key in ("\t", "\x1b[B", "\r", "2", "1"):
                terminal.press(key)
                for _ in range(10):
                    terminal.read(0.1)
            terminal.press("q")
            attached = program.peak()
        ended.set()
        thread.join()
    return [name, f"{sum(map(len, payloads)):,}", "", shown, "", "", "", attached]


def measure(name: str, directory: Path) -> list[str]:
    """Returns a row of the table."""
    if name in KV_BOMBS:
        return _of_kv_events(name, directory)
    bomb = make(name, directory)
    size = bomb.recording.stat().st_size
    return [
        name,
        f"{sum(map(len, bomb.payloads)):,}",
        f"{size:,}",
        _printed(directory, "show", str(bomb.recording)),
        _printed(directory, "check", str(bomb.recording)),
        _replayed(directory, bomb),
        _recorded(directory, bomb),
        _attached(directory, bomb),
    ]


TITLES = ("bomb", "bytes", "recorded", "show", "check", "replay", "record", "attach")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[*BOMBS, *KV_BOMBS])
    options = parser.parse_args(arguments)
    for row in chain([list(TITLES)], _rows(options.names)):
        print(f"{row[0]:<34}" + "".join(f"{cell:>13}" for cell in row[1:]), flush=True)


def _rows(names: Sequence[str]) -> Iterator[list[str]]:
    for name in names:
        with TemporaryDirectory(prefix="sq") as directory:
            yield measure(name, Path(directory))
