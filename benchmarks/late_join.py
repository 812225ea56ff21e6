"""Measures the time until a late viewer has the state, and its effect on the engine.

An engine in a process of its own has 10,000 sequences of 1,000 tokens each, 500 of prompt and 500
of output, with texts and log probabilities. The figure is the time from the start of a session
until its state equals the engine's, which is checked once. The peer is the time that msgspec alone
takes to encode and decode that state in one process.

The engine's loop waits 5 ms (as for a GPU) and publishes a step of 256 decodes. The time of each
round beyond these 5 ms is compared between rounds with and without a joining viewer.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory

from benchmarks import running
from benchmarks.figure import Figure, Findings, Growth, Limit, middle, percentile
from benchmarks.scenes import Crowd
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec
from seqtop.wire.arrays import Ints

TITLE = "Late join"
MAX_MS = 600.0
"""The upper limit of the factor by which the p99 of the engine's loop grows."""
SIZES = (100, 1_000, 10_000)
TOKENS = 500
RUNNING = 256
JOINS = 7
PAUSE_SECONDS = 5e-4
"""Per sequence: the engine's pause between two snapshots."""
LOOP_SECONDS = 0.005


def measure(*, tiny: bool = False) -> Findings:
    sizes, joins = (SIZES[:1], 1) if tiny else (SIZES, JOINS)
    points: list[tuple[float, float]] = []
    for size in sizes:
        with engine(size) as (endpoint, pipe):
            pipe.send("step")
            time.sleep(0.2 if tiny else 2.0)
            pipe.send("stop")
            quiet = pipe.recv()
            joined: list[float] = []
            waits = []
            for number in range(joins):
                # The engine limits the share of time that it spends on snapshots.
                time.sleep(size * PAUSE_SECONDS)
                pipe.send("step")
                waits.append(_join(endpoint, pipe))
                joined += pipe.recv()
                if not number:
                    _compare(endpoint, pipe, size)
            points.append((size, middle(waits) * 1e3))
    bare = _bare_seconds(sizes[-1])
    value = middle(waits) * 1e3
    before, during = percentile(quiet, 99) * 1e3, percentile(joined, 99) * 1e3
    figures = [
        Figure(
            what=f"{sizes[-1]:,} sequences × {2 * TOKENS:,} tokens, from the start to equal state",
            measured=f"wall, median of {joins}",
            value=value,
            unit="ms",
            limit=Limit(MAX_MS),
            peer="msgspec encodes and decodes that state",
            peer_value=bare * 1e3,
            ratio=bare * 1e3 / value,
            note="Half a second of work for two processes, a third of it for touching memory for"
            " the first time; they share it. `benchmarks/profile.md` has it piece by piece.",
        ),
        Figure(
            what="a round of the engine's loop while viewers join",
            measured=f"wall beyond its {LOOP_SECONDS * 1e3:g} ms, p99 of {len(joined):,};"
            f" longest {max(joined) * 1e3:.1f} ms",
            value=during,
            unit="ms",
            peer=f"without joins, {len(quiet):,} rounds; longest {max(quiet) * 1e3:.1f} ms",
            peer_value=before,
            ratio=during / before,
        ),
    ]
    growth = [Growth("late join", "sequences", "ms", points, limit=1.05)]
    return Findings(figures, [] if tiny else growth)


def full_state(size: int) -> tuple[Crowd, EngineState]:
    """Returns `size` sequences with prompts and outputs of `TOKENS` tokens each."""
    crowd, state = Crowd(size), EngineState()
    for event in crowd.arrivals():
        state.apply(event)
    for request in state.requests.values():
        request.prompt_token_ids = Ints.of([(index * 7 + 3) % 1_000 for index in range(TOKENS)])
        request.prompt = " the fox" * (TOKENS // 2)
    for number, sequence in state.sequences.items():
        ids = [(index * 11 + number) % 1_000 for index in range(TOKENS)]
        sequence.output_token_ids = sequence.output_token_ids.plus(ids[1:])
        # Single precision, as models compute.
        logprobs = [-index / 1_024 for index in range(1, TOKENS)]
        sequence.output_logprobs = sequence.output_logprobs.plus(logprobs)
        sequence.text_lengths = sequence.text_lengths.plus([4] * (TOKENS - 1))
        sequence.text += " fox" * (TOKENS - 1)
        sequence.num_computed_tokens += TOKENS - 1
    return crowd, state


@contextmanager
def engine(size: int) -> Iterator[tuple[str, Connection]]:
    """Starts a process that publishes; yields its endpoint and a pipe for commands."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        process = context.Process(target=_run_engine, args=(endpoint, size, theirs), daemon=True)
        process.start()
        try:
            ours.recv()
            yield endpoint, ours
        finally:
            process.kill()
            process.join()


def _run_engine(endpoint: str, size: int, pipe: Connection) -> None:
    """Publishes after `step`; answers `digest` with the digest of the state, `stop` with times."""
    crowd, state = full_state(size)
    with MessagePublisher(endpoint, crowd.info, state) as publisher:
        pipe.send("ready")
        while True:
            order = pipe.recv()
            if order == "digest":
                pipe.send(digest(state))
            elif order == "step":
                pipe.send(_step_on(crowd, publisher, pipe))


def _step_on(crowd: Crowd, publisher: MessagePublisher, pipe: Connection) -> list[float]:
    """Steps until the next command; returns the seconds of each round beyond its wait."""
    spent = []
    who = range(min(RUNNING, crowd.size))
    while not pipe.poll():
        step = crowd.step(who)
        started = time.perf_counter()
        time.sleep(LOOP_SECONDS)
        publisher.publish(step)
        spent.append(time.perf_counter() - started - LOOP_SECONDS)
    pipe.recv()
    return spent


def digest(state: EngineState) -> str:
    """Returns a digest of everything in the state except the clock, which heartbeats advance."""
    time_, state.time = state.time, 0.0
    kept, state.max_finished = state.max_finished, 0
    found = hashlib.sha256(codec.encode(state)).hexdigest()
    state.time, state.max_finished = time_, kept
    return found


def _join(endpoint: str, pipe: Connection) -> float:
    """Returns the seconds until a new session has the state; then stops the engine's loop."""
    session = Session(endpoint)
    started = time.perf_counter()
    with session:
        if not session.wait_for(ConnectionState.LIVE, timeout=60):
            raise TimeoutError("no state has come")
        taken = time.perf_counter() - started
        pipe.send("stop")
    return taken


def _compare(endpoint: str, pipe: Connection, size: int) -> None:
    """Checks that the viewer's state equals the engine's."""
    time.sleep(size * PAUSE_SECONDS)
    with Session(endpoint) as session:
        session.wait_for(ConnectionState.LIVE, timeout=60)
        pipe.send("digest")
        wanted = pipe.recv()
        with session.lock:
            if wanted != digest(session.state):
                raise AssertionError("the viewer's state is another than the engine's")


def _bare_seconds(size: int) -> float:
    _, state = full_state(size)
    started = time.perf_counter()
    codec.decode(codec.encode(state), EngineState)
    return time.perf_counter() - started


if __name__ == "__main__":
    running.alone(measure)
