"""Measures the time from the end of a fault until a viewer's state equals the engine's.

Plays the seeded scenarios of `tests/faults`: real sockets, a proxy that drops, delays, repeats,
cuts, corrupts, reorders, disconnects and freezes, and engines that restart. Heartbeats come every
0.2 s; with the default of 1 s the loss of a last message is detected up to 0.8 s later.

    python -m tests.release healing --stories 200
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from tests.support import scenario


def measure(stories: int) -> dict[str, tuple[list[float], int, int]]:
    """Returns by kind of fault the seconds to recover, and the numbers of faults and resyncs."""
    seconds: dict[str, list[float]] = defaultdict(list)
    faults: dict[str, int] = defaultdict(int)
    resyncs: dict[str, int] = defaultdict(int)
    for seed in range(stories):
        story = scenario.plan(seed)
        with TemporaryDirectory(prefix="sq") as directory:
            outcome = scenario.run(seed, directory)
        kinds = {kind for kind, count in outcome.faults.items() if count}
        for kind in {*kinds, *filter(None, [story.outage]), "all"}:
            seconds[kind].append(outcome.seconds_to_equal)
            faults[kind] += outcome.faults.get(kind, 0)
            resyncs[kind] += outcome.num_resyncs
    return {kind: (seconds[kind], faults[kind], resyncs[kind]) for kind in seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stories", type=int, default=200)
    kinds = measure(parser.parse_args(arguments).stories)
    print(
        f"{'fault':<10} {'stories':>7} {'done':>7} {'resyncs':>7} {'p50':>7} {'p95':>7} {'max':>7}"
    )
    for kind in sorted(kinds, key=lambda kind: (kind == "all", kind)):
        seconds, faults, resyncs = kinds[kind]
        p95 = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
        print(
            f"{kind:<10}{len(seconds):>8}{faults or '':>8}{resyncs:>8}"
            f"{median(seconds):>7.2f}s{p95:>7.2f}s{max(seconds):>7.2f}s"
        )
