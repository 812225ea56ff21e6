"""Measures how long the garbage collector stops the app while 10,000 sequences are live.

An engine of so many sequences publishes steps, each of which has a token for some of them. The app
watches it. Printed are, for each generation of the collector, its collections, their processor
time and the longest one, and the longest delays of the app's event loop, each with the processor
time of all threads of the process meanwhile: in the rest, it waited for a processor.

    python -m benchmarks.pauses --seconds 600
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event as Flag
from typing import NamedTuple

from benchmarks import terminal
from benchmarks.figure import percentile
from benchmarks.scenes import Crowd
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.tui.app import SeqtopApp
from tests.support.waiting import SECONDS

LIVE = 10_000
RUNNING = 256
"""The sequences that get a token in a step."""
RATE = 20.0
"""Steps a second."""
INTERVAL = 0.005
"""Seconds between two looks at the clock."""
_BATCH, _PAUSE = 1_000, 0.2
"""The arrivals that are published at once, and seconds after them: the queue is bounded."""


class Outcome(NamedTuple):
    """The collections and the delays of a run."""

    collections: list[list[float]]
    """The processor time of each collection in seconds, by generation."""
    delays: list[tuple[float, float]]
    """The delays of the event loop, shortest first, each with the processor time of the process
    from the look at the clock before it; seconds."""


def publish(endpoint: str, live: int, ended: Flag) -> None:
    """Publishes `live` sequences, and steps until `ended`."""
    crowd = Crowd(live)
    with MessagePublisher(endpoint, crowd.info, EngineState()) as publisher:
        for number, event in enumerate(crowd.arrivals()):
            publisher.publish(event)
            if number % _BATCH == _BATCH - 1:
                time.sleep(_PAUSE)
        everybody = itertools.cycle(range(live))
        while not ended.wait(1 / RATE):
            publisher.publish(crowd.step(itertools.islice(everybody, min(RUNNING, live))))


@contextmanager
def counted() -> Iterator[list[list[float]]]:
    """Counts the collections of this process."""
    collections: list[list[float]] = [[], [], []]
    started = 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = time.thread_time()
        else:
            collections[info["generation"]].append(time.thread_time() - started)

    gc.callbacks.append(note)
    try:
        yield collections
    finally:
        gc.callbacks.remove(note)


async def run(seconds: float, live: int = LIVE, screen: str = "") -> Outcome:
    """Shows the app for `seconds`, once all sequences are there.

    Args:
        seconds: The time.
        live: The number of sequences.
        screen: The key of the screen to open; empty for the first one.
    """
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    with tempfile.TemporaryDirectory(prefix="sq") as folder:
        endpoint = f"ipc://{folder}/e"
        engine = context.Process(target=publish, args=(endpoint, live, ended), daemon=True)
        engine.start()
        try:
            gc.disable()  # as `run_app` does; the app enables it after its first frame
            with Session(endpoint) as session:
                assert session.wait_until(lambda: len(session.state.sequences) == live, SECONDS)
                app = SeqtopApp(session)
                async with terminal.shown(app) as pilot:
                    await pilot.press(*screen)
                    with counted() as collections:
                        delays, end = [], time.monotonic() + seconds
                        while (before := time.monotonic()) < end:
                            worked = time.process_time()
                            await asyncio.sleep(INTERVAL)
                            delay = time.monotonic() - before - INTERVAL
                            delays.append((delay, time.process_time() - worked))
        finally:
            ended.set()
            engine.join(SECONDS)
    return Outcome(collections, sorted(delays))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--live", type=int, default=LIVE, help="sequences")
    parser.add_argument("--screen", default="", metavar="KEY", help="key of the screen to open")
    options = parser.parse_args()
    outcome = asyncio.run(run(options.seconds, options.live, options.screen))
    print(f"{'generation':<12}{'collections':>12}{'CPU s':>8}{'longest ms':>12}")
    for generation, times in enumerate(outcome.collections):
        longest = f"{max(times) * 1e3:.1f}" if times else ""
        print(f"{generation:<12}{len(times):>12}{sum(times):>8.2f}{longest:>12}")
    p99 = percentile([delay for delay, _ in outcome.delays], 99)
    print(f"delays: p99 {p99 * 1e3:.0f} ms; the longest:")
    for delay, worked in outcome.delays[-10:]:
        print(f"{delay * 1e3:.0f} ms, of which CPU {worked * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
