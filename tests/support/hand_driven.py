"""A hand-driven engine end: real sockets, but the test decides each frame that is sent."""

from types import TracebackType
from typing import Any

import msgspec
import zmq

from seqtop.live.connection import ConnectionState
from seqtop.live.session import Session
from seqtop.sequence import ExecuteModelRequest, SequenceGroupMetadataLike, SequenceStatus
from seqtop.state import EngineState, snapshot
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec, frames
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    SequenceUpdate,
    Step,
    StepStats,
)
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot
from tests.support.waiting import MILLISECONDS, SECONDS


def engine_info(**changes: Any) -> EngineInfo:
    info = EngineInfo(
        engine_id="test",
        incarnation="one",
        engine="test 1",
        model="none",
        dtype="float32",
        device="cpu",
        start_time=1.0,
        block_size=16,
        num_gpu_blocks=64,
        num_cpu_blocks=None,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        max_model_len=512,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        preemption_mode="recompute",
        heartbeat_interval=0.05,
    )
    return msgspec.structs.replace(info, **changes)


def arrival(number: int) -> RequestArrived:
    return RequestArrived(
        request_id=f"req-{number}",
        arrival_time=float(number),
        seq_ids=[number],
        num_prompt_tokens=3,
        prompt="a b c",
        prompt_token_ids=Ints.of([1, 2, 3]),
    )


def engine_snapshot(truth: EngineState) -> Snapshot:
    """Returns the snapshot of an engine that knows `truth`, in which nothing has been computed."""
    return Snapshot(
        time=truth.time,
        step=truth.step,
        stats=truth.stats,
        requests=[
            RequestSnapshot(
                arrival=arrival(number),
                sequences=[
                    SequenceSnapshot(
                        update=SequenceUpdate(
                            seq_id=number, status=SequenceStatus.WAITING, num_computed_tokens=0
                        )
                    )
                ],
            )
            for number in truth.sequences
        ],
    )


def stats(**changes: Any) -> StepStats:
    empty = StepStats(
        num_running=0,
        num_waiting=0,
        num_used_blocks=0,
        num_free_blocks=64,
        num_cached_blocks=0,
        num_prefill_tokens=0,
        num_decode_tokens=0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        num_preemptions=0,
        scheduler_time=0.001,
        model_forward_time=0.01,
        model_execute_time=0.02,
    )
    return msgspec.structs.replace(empty, **changes)


def step(number: int, *groups: SequenceGroupMetadataLike, **fields: Any) -> Step:
    return Step(
        step=number,
        start_time=100.0 + number,
        time=100.5 + number,
        execute=ExecuteModelRequest(list(groups)),
        sequences=fields.pop("sequences", []),
        stats=fields.pop("stats", stats()),
        **fields,
    )


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

    def __enter__(self) -> "HandDrivenEngine":
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
