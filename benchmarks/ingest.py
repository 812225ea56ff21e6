"""Measures how fast a viewer receives, decodes and applies a stream.

A process sends prepared steps over real sockets, as fast as they are read. The figure is the CPU
time of all threads of the viewer, including ZeroMQ's. The peer only decodes the same bytes to
structs with msgspec. `plain decodes` are 256 sequences that each get a token; the `mixed` load is
the seeded script of the tests: prefills, forks, candidates, preemptions. `with its history` is a
whole session, which also stores every step. The growth is that of a delta's time with the number
of live sequences, of which the same 256 run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks import running
from benchmarks.feeder import feeding
from benchmarks.figure import Figure, Findings, Growth, Limit, middle
from benchmarks.scenes import Crowd, decoding, num_deltas
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.subscriber import Subscriber
from seqtop.wire import codec, parsing
from seqtop.wire.frames import Frame
from seqtop.wire.messages import Event, Step
from seqtop.wire.snapshot import Snapshot, SnapshotPart

TITLE = "Ingest: receive, decode, apply"
MIN_RATE = 150_000.0
RUNNING = 256
NUM_STEPS = 1_000
ROUNDS = 3
GROWTH_SIZES = 256, 2_560, 25_600
"""Live sequences."""
GROWTH_STEPS = 500


@dataclass
class Stream:
    """Prepared messages, and the state before the first one."""

    state: EngineState
    payloads: list[bytes]
    num_deltas: int


@dataclass
class Applying:
    """A receiver of a subscriber's messages that only applies them."""

    num_events: int = 0
    state: EngineState = field(default_factory=EngineState)
    restored: bool = False

    def apply(self, frame: Frame, event: Event) -> None:
        self.state.apply(event)
        self.num_events += 1

    def load(self, message: Snapshot | SnapshotPart) -> None:
        assert isinstance(message, Snapshot)
        self.state.apply(message)

    def restore(self, incarnation: str, sequence_number: int) -> None:
        self.restored = True

    def connection_changed(self) -> None:
        pass


def plain(live: int, running_: int, num_steps: int) -> Stream:
    """Returns steps in which the first `running_` of `live` sequences get a token."""
    crowd, state = Crowd(live), EngineState()
    for event in crowd.arrivals():
        state.apply(event)
    steps = [codec.encode(crowd.step(range(running_))) for _ in range(num_steps)]
    return Stream(state, steps, running_ * num_steps)


def mixed(running_: int, num_steps: int) -> Stream:
    events = list(decoding(running_, num_steps))
    count = sum(num_deltas(event) for event in events if isinstance(event, Step))
    state = EngineState()
    state.apply(events[0])
    return Stream(state, [codec.encode(event) for event in events[1:-1]], count)


def measure(*, tiny: bool = False) -> Findings:
    steps, rounds = (10, 1) if tiny else (NUM_STEPS, ROUNDS)
    decodes = plain(RUNNING, RUNNING, steps)
    figures = [
        _figure("plain decodes", decodes, rounds, apply_seconds),
        _figure("mixed load", mixed(RUNNING, steps // 4), rounds, apply_seconds),
        _figure("plain decodes, with its history", decodes, rounds, session_seconds),
    ]
    points: list[tuple[float, float]] = []
    for size in GROWTH_SIZES:
        live, steps = (size // 100, 3) if tiny else (size, GROWTH_STEPS)
        stream = plain(live, min(live, RUNNING), steps)
        spent = middle([apply_seconds(stream) for _ in range(rounds)])
        points.append((live, spent / stream.num_deltas * 1e6))
    growth = Growth("ingest, CPU a delta", "live sequences", "µs", points, limit=0.1)
    return Findings(figures, [growth])


def _figure(
    what: str,
    stream: Stream,
    rounds: int,
    seconds: Callable[[Stream], float],
) -> Figure:
    """Measures `stream` against decoding the same bytes."""
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(stream.num_deltas / seconds(stream))
        bare.append(stream.num_deltas / decode_seconds(stream.payloads))
    size = sum(map(len, stream.payloads)) / stream.num_deltas
    return Figure(
        what=f"{what}, {RUNNING} running, {size:.0f} bytes a delta",
        measured=f"CPU, median of {rounds} rounds of {stream.num_deltas:,} deltas",
        value=middle(ours),
        unit="deltas/s",
        limit=Limit(MIN_RATE, at_least=True),
        peer="msgspec decodes the same bytes",
        peer_value=middle(bare),
        ratio=middle(ours) / middle(bare),
    )


def apply_seconds(stream: Stream) -> float:
    """Returns the CPU seconds of a subscriber whose messages are applied to a state."""
    sink = Applying()
    with feeding(stream.state, stream.payloads) as feeder:
        subscriber = Subscriber(feeder.endpoint, sink)
        subscriber.start()
        try:
            _wait(lambda: sink.restored)
            gc.collect()
            started = time.process_time()
            feeder.go()
            _wait(lambda: sink.num_events >= len(stream.payloads))
            return time.process_time() - started
        finally:
            subscriber.close()


def session_seconds(stream: Stream) -> float:
    """Returns the CPU seconds of a whole session with its history."""
    with feeding(stream.state, stream.payloads) as feeder, Session(feeder.endpoint) as session:
        session.await_engine(30)
        gc.collect()
        started = time.process_time()
        feeder.go()
        _wait(lambda: session.sequence_number >= len(stream.payloads))
        return time.process_time() - started


def decode_seconds(payloads: list[bytes]) -> float:
    started = time.process_time()
    for payload in payloads:
        parsing.event(payload)
    return time.process_time() - started


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the stream has not arrived")
        time.sleep(0.02)


if __name__ == "__main__":
    running.alone(measure)
