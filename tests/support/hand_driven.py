"""A hand-driven engine end: real sockets, but the test decides each frame that is sent."""

from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from seqtop.live.session import Session
from seqtop.state import EngineState, snapshot
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec, frames
from seqtop.wire.messages import (
    Event,
)
from seqtop.wire.snapshot import Snapshot
from tests.support.waiting import MILLISECONDS, SECONDS


class HandDrivenEngine:
    """Binds as an engine does; sends what a test gives it, and answers requests when asked to."""

    def __init__(self, endpoint: str, incarnation: str = "one", *, welcomes: bool = True) -> None:
        self.incarnation = incarnation
        self.state = EngineState()
        self.next_number = 0
        self._context = zmq.Context()
        self.live = self._context.socket(zmq.XPUB)
        if welcomes:
            self.live.setsockopt(zmq.XPUB_WELCOME_MSG, frames.topic(incarnation))
        self.live.bind(endpoint)
        self.router = self._context.socket(zmq.ROUTER)
        self.router.bind(snapshot_endpoint(endpoint))

    def await_viewer(self) -> None:
        """Wait until a viewer's subscription has arrived: from then on it misses nothing."""
        assert self.live.poll(MILLISECONDS), "no viewer subscribed"
        assert self.live.recv() == b"\x01"

    def send(self, event: Event, *, lose: bool = False) -> None:
        """Apply `event` to the engine's own state and publish it, unless it is to be lost."""
        self.state.apply(event)
        payload = codec.encode(event)
        if not lose:
            self.send_frames(frames.pack(self.incarnation, self.next_number, payload))
        self.next_number += 1

    def send_frames(self, parts: list[frames.Buffer]) -> None:
        self.live.send_multipart(parts)

    def answer(self, reply: object | list[frames.Buffer] | None = None) -> bytes:
        """Waits for one request and answers it, by default with a snapshot.

        Returns the question.
        """
        assert self.router.poll(MILLISECONDS), "no viewer asked"
        identity, question = self.router.recv_multipart()
        parts = reply if isinstance(reply, list) else self.reply(reply)
        self.router.send_multipart([identity, *parts])
        return question

    def reply(self, message: object | None = None) -> list[frames.Buffer]:
        """Returns the frames of a reply after the last message, by default with a snapshot."""
        return self.pack_reply(codec.encode(message or self.snapshot()))

    def pack_reply(self, payload: bytes) -> list[frames.Buffer]:
        """Returns the frames of a reply after the last message."""
        return frames.pack(self.incarnation, self.next_number, payload)

    def snapshot(self, **changes: Any) -> Snapshot:
        """Returns the snapshot after the last message, with some fields changed."""
        return msgspec.structs.replace(snapshot.take(self.state), **changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)


def same(viewer: EngineState, engine: EngineState) -> bool:
    """Equal in every field but the viewer's own limit on history."""
    return msgspec.structs.replace(viewer, max_finished=engine.max_finished) == engine


def joined(engine: HandDrivenEngine, session: Session) -> None:
    engine.await_viewer()
    engine.answer()
    assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
