"""Measures the memory of a viewer after 100,000 finished sequences.

The figure is the resident memory of `seqtop attach` on a pseudo-terminal. Requests of the engine
finish immediately, with 50 tokens each. The peer is an empty Textual app. A session with the same
stream checks the limit of the history.
"""

from __future__ import annotations

import time

from benchmarks import running
from benchmarks.feeder import feeding
from benchmarks.figure import Figure, Findings, Growth, Limit
from benchmarks.pseudo_terminal import EMPTY_APP, SIZE, on_terminal
from benchmarks.scenes import Crowd
from seqtop.history.memory_store import DEFAULT_MAX_BYTES
from seqtop.live.session import VIEWER_MAX_FINISHED, Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire import codec

TITLE = "Memory"
MAX_MB = 300.0
SIZES = (1_000, 10_000, 100_000)
TOKENS = 50
"""Tokens per request, in the step that also ends it."""
QUIET_SECONDS = 1.5


def measure(*, tiny: bool = False) -> Findings:
    sizes, quiet = ((100,), 0.3) if tiny else (SIZES, QUIET_SECONDS)
    with on_terminal("-c", EMPTY_APP) as empty:
        empty.read_until(SIZE[0])
        empty.read(1.0)
        peer = empty.resident_bytes / 1e6
    points = []
    for size in sizes:
        state, payloads = _stream(size)
        points.append((float(size), _viewer_megabytes(state, payloads, quiet)))
    kept, num_bytes = _session(state, payloads)
    value = points[-1][1]
    figures = [
        Figure(
            what=f"seqtop attach after {sizes[-1]:,} finished sequences",
            measured="resident memory",
            value=value,
            unit="MB",
            limit=Limit(MAX_MB),
            peer="an empty Textual app",
            peer_value=peer,
            ratio=value / peer,
        ),
        Figure(
            what="finished requests that its state keeps",
            measured="count",
            value=kept,
            unit="",
            limit=Limit(VIEWER_MAX_FINISHED),
        ),
        Figure(
            what="its history, every step of the run",
            measured="bytes that it holds, compressed",
            value=num_bytes / 1e6,
            unit="MB",
            limit=Limit(DEFAULT_MAX_BYTES / 1e6),
        ),
    ]
    over_empty = [(size, megabytes - peer) for size, megabytes in points]
    growth = [Growth("memory beyond an empty app's", "finished", "MB", over_empty, limit=1.0)]
    return Findings(figures, [] if tiny else growth)


def _stream(num_finished: int) -> tuple[EngineState, list[bytes]]:
    """Returns the state at the start, and messages in which the requests arrive and finish."""
    crowd, state = Crowd(num_finished), EngineState()
    state.apply(crowd.info)
    return state, [codec.encode(event) for event in crowd.short_lives(TOKENS)]


def _viewer_megabytes(state: EngineState, payloads: list[bytes], quiet: float) -> float:
    """Returns the memory of `seqtop attach` after the last message, in MB."""
    with (
        feeding(state, payloads, per_second=20_000) as feeder,
        on_terminal("-m", "seqtop", "attach", feeder.endpoint) as program,
    ):
        program.read_until(SIZE[0] * SIZE[1])
        feeder.go()
        deadline = time.monotonic() + 180
        program.read(quiet)
        while time.monotonic() < deadline:
            before, worked = program.num_bytes, program.cpu_seconds
            program.read(quiet)
            still = program.cpu_seconds - worked < 0.1 * max(quiet, 1.0)
            if still and program.num_bytes - before < SIZE[0] * SIZE[1]:
                return program.resident_bytes / 1e6
        raise TimeoutError("the viewer has not come to rest")


def _session(state: EngineState, payloads: list[bytes]) -> tuple[int, int]:
    """Returns the finished requests and bytes of history that a session stores."""
    with feeding(state, payloads) as feeder, Session(feeder.endpoint) as session:
        session.await_engine(30)
        feeder.go()
        while session.sequence_number < len(payloads):
            time.sleep(0.02)
        with session.lock:
            ended = sum(
                SequenceStatus.is_finished(sequence.status)
                for sequence in session.state.sequences.values()
            )
            assert ended >= len(session.state.finished)
            return len(session.state.finished), session.history.num_bytes


if __name__ == "__main__":
    running.alone(measure)
