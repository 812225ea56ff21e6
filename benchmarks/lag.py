"""Measures the app's response time at 100,000 deltas and 30 frames per second.

The whole app, its session and its history are in one process, with real sockets and 10,000
sequences, of which each step runs 256. A task sleeps for 5 ms at a time; the delay of its wake-up
is the lag that a key would have. The peer is the same app without messages.
"""

from __future__ import annotations

import asyncio
import itertools
import time

from benchmarks import running, terminal
from benchmarks.feeder import feeding
from benchmarks.figure import Figure, Findings, Growth, Limit, percentile
from benchmarks.scenes import Crowd
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from seqtop.wire import codec

TITLE = "Ingest while painting"
MAX_LAG_MS = 100.0
"""Delays below a tenth of a second pass unnoticed (Nielsen, Usability Engineering, 1993)."""
MAX_CORES = 1.0
DELTAS_A_SECOND = 100_000
RUNNING = 256
LIVE = 10_000
SECONDS = 8.0
WARM_UP_SECONDS = 1.0
INTERVAL = 0.005


def stream(live: int, seconds: float, rate: float) -> tuple[EngineState, list[bytes], float]:
    """Returns a state, the messages that follow it, and their rate per second."""
    crowd, state = Crowd(live), EngineState()
    for event in crowd.arrivals():
        state.apply(event)
    everybody = itertools.cycle(range(live))
    per_second = rate / RUNNING
    steps = [
        codec.encode(crowd.step(itertools.islice(everybody, RUNNING)))
        for _ in range(int(seconds * per_second))
    ]
    return state, steps, per_second


def measure(*, tiny: bool = False) -> Findings:
    live, seconds = (300, 0.5) if tiny else (LIVE, SECONDS)
    lags, cores, fps = asyncio.run(_run(live, seconds, DELTAS_A_SECOND))
    idle_lags, _, _ = asyncio.run(_run(live, min(seconds, 3.0), 0))
    value, peer = percentile(lags, 99) * 1e3, percentile(idle_lags, 99) * 1e3
    figures = [
        Figure(
            what=f"lag at {DELTAS_A_SECOND:,} deltas/s, {live:,} sequences",
            measured=f"wall, p99 of {len(lags):,} wakings; {fps:.0f} frames a second",
            value=value,
            unit="ms",
            limit=Limit(MAX_LAG_MS),
            peer="the same app, nothing arriving",
            peer_value=peer,
            ratio=peer / value,
        ),
        Figure(
            what="all threads of that process",
            measured=f"CPU over {seconds:g} s",
            value=cores,
            unit="cores",
            limit=Limit(MAX_CORES),
        ),
    ]
    if tiny:
        return Findings(figures)
    points = [
        (float(rate), asyncio.run(_run(live, 4.0, rate))[1])
        for rate in (DELTAS_A_SECOND // 100, DELTAS_A_SECOND // 10)
    ]
    points.append((float(DELTAS_A_SECOND), cores))
    return Findings(figures, [Growth("cores, whole app", "deltas/s", "cores", points, limit=1.05)])


async def _run(live: int, seconds: float, rate: float) -> tuple[list[float], float, float]:
    """Returns lags in seconds, cores used and frames per second."""
    state, payloads, per_second = stream(live, seconds + 1.5, rate)
    with (
        feeding(state, payloads, per_second=per_second) as feeder,
        Session(feeder.endpoint) as session,
    ):
        session.await_engine(60)
        app = SeqtopApp(session)
        async with terminal.shown(app):
            driver = app._driver
            assert isinstance(driver, terminal.CountingDriver)
            feeder.go()
            await asyncio.sleep(min(WARM_UP_SECONDS, seconds))  # warm-up
            frames, worked, started = driver.num_frames, time.process_time(), time.monotonic()
            lags = []
            while (before := time.monotonic()) < started + seconds:
                await asyncio.sleep(INTERVAL)
                lags.append(time.monotonic() - before - INTERVAL)
            elapsed = time.monotonic() - started
            cores = (time.process_time() - worked) / elapsed
            if rate and session.connection.num_missed:
                raise RuntimeError(f"{session.connection.num_missed} messages were missed")
            return lags, cores, (driver.num_frames - frames) / elapsed


if __name__ == "__main__":
    running.alone(measure)
