"""What a viewer costs while nothing happens: the engine sends heartbeats and no more.

`seqtop attach` on a pseudo-terminal, once it has come to rest; the process's CPU time, and what it
writes to the terminal. The peer is an app of Textual's with nothing in it, at the same time.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from benchmarks import running
from benchmarks.figure import Figure, Findings, Limit
from benchmarks.pseudo_terminal import EMPTY_APP, OnTerminal, on_terminal
from benchmarks.scenes import Crowd
from seqtop.state import EngineState
from seqtop.wire.publisher import Publisher

TITLE = "An idle viewer"
MAX_SHARE = 0.005
SECONDS = 20.0
SETTLE_SECONDS = 6.0
"""The rates in the header take a while to come down to nothing."""
LIVE = 1_000


def measure(*, tiny: bool = False) -> Findings:
    live, seconds, settle = (10, 0.5, 1.0) if tiny else (LIVE, SECONDS, SETTLE_SECONDS)
    crowd = Crowd(live)
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="sq"))
        endpoint = f"ipc://{directory}/e"
        started = time.monotonic()
        publisher = stack.enter_context(
            Publisher(
                endpoint,
                crowd.info,
                EngineState(),
                clock=lambda: crowd.time + time.monotonic() - started,
            )
        )
        for event in [*crowd.arrivals(), *crowd.ends()][1:]:
            publisher.publish(event)
        empty = stack.enter_context(on_terminal("-c", EMPTY_APP))
        viewer = stack.enter_context(on_terminal("-m", "seqtop", "attach", endpoint))
        for program in (empty, viewer):
            program.read(settle / 2)
        (ours, written), (theirs, _) = _watch(viewer, empty, seconds)
    figures = [
        Figure(
            what=f"{live:,} finished sequences on show, heartbeats alone",
            measured=f"CPU over {seconds:g} s",
            value=ours / seconds,
            unit="%",
            limit=Limit(MAX_SHARE),
            peer="an empty Textual app",
            peer_value=theirs / seconds,
            ratio=ours / theirs if theirs else None,
        ),
        Figure(
            what="written to the terminal meanwhile",
            measured=f"bytes in {seconds:g} s",
            value=written,
            unit="bytes",
            limit=Limit(0),
        ),
    ]
    return Findings(figures)


def _watch(
    viewer: OnTerminal, empty: OnTerminal, seconds: float
) -> tuple[tuple[float, int], tuple[float, int]]:
    """CPU seconds and bytes written, of both, over the same `seconds`."""
    before = [(each.cpu_seconds, each.num_bytes) for each in (viewer, empty)]
    viewer.read(seconds)
    empty.read(0.001)
    after = [(each.cpu_seconds, each.num_bytes) for each in (viewer, empty)]
    (a, b), (c, d) = (
        (new[0] - old[0], new[1] - old[1]) for new, old in zip(after, before, strict=True)
    )
    return (a, int(b)), (c, int(d))


if __name__ == "__main__":
    running.alone(measure)
