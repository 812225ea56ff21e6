"""A minimal publisher in a process of its own, which sends prepared messages.

It sends welcome messages, answers the first request with a snapshot, and sends the messages at a
given rate or as fast as the viewer reads, so that measurements contain the viewer only.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import zmq

from seqtop.state import EngineState, snapshot
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec, frames
from seqtop.wire.messages import Event

INCARNATION = "feeder"


@dataclass
class Feeder:
    endpoint: str
    process: BaseProcess
    _go: Flag

    def go(self) -> None:
        """Starts sending the prepared messages. Before that only the snapshot is available."""
        self._go.set()


@contextmanager
def feeding(
    state: EngineState, events: list[Event] | list[bytes], *, per_second: float | None = None
) -> Iterator[Feeder]:
    """Publishes `state` and, after `go`, the messages `events` at the given rate."""
    payloads = [event if isinstance(event, bytes) else codec.encode(event) for event in events]
    context = multiprocessing.get_context("spawn")
    go = context.Event()
    with TemporaryDirectory(prefix="sq") as directory:
        path = Path(directory, "payloads")
        path.write_bytes(msgspec.msgpack.encode(payloads))
        Path(directory, "snapshot").write_bytes(codec.encode(snapshot.take(state)))
        endpoint = f"ipc://{directory}/e"
        process = context.Process(target=_feed, args=(endpoint, path, go, per_second), daemon=True)
        process.start()
        try:
            yield Feeder(endpoint, process, go)
        finally:
            process.kill()
            process.join()


def _feed(endpoint: str, path: Path, go: Flag, per_second: float | None) -> None:
    payloads = msgspec.msgpack.decode(path.read_bytes(), type=list[bytes])
    context = zmq.Context()
    live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    live.setsockopt(zmq.XPUB_WELCOME_MSG, frames.topic(INCARNATION))
    live.sndhwm = 0  # no message may be dropped
    live.bind(endpoint)
    router.bind(snapshot_endpoint(endpoint))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    while not router.poll(10):
        live.poll(0)  # an XPUB socket sends welcome messages only when polled
    identity, _ = router.recv_multipart()
    whole = path.with_name("snapshot").read_bytes()
    router.send_multipart([identity, *frames.pack(INCARNATION, 1, whole)])
    go.wait()
    started = time.monotonic()
    for number, payload in enumerate(payloads, 1):
        if per_second and (early := started + number / per_second - time.monotonic()) > 0:
            time.sleep(early)
        live.send_multipart(frames.pack(INCARNATION, number, payload))
    threading.Event().wait()


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
