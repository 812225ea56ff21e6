"""Measures the time from the end of a fault until a viewer's state equals the engine's.

Plays the seeded scenarios of `tests/faults`: real sockets, a proxy that drops, delays, repeats,
cuts, corrupts, reorders, disconnects and freezes, and engines that restart. Heartbeats come every
0.2 s; with the default of 1 s the loss of a last message is detected up to 0.8 s later.

    python benchmarks/healing.py --stories 200
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from tests.support import scenario

TITLES = ("stories", "done", "resyncs", "p50", "p95", "max")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stories", type=int, default=200)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = defaultdict(list)
    done: dict[str, int] = defaultdict(int)
    resyncs: dict[str, int] = defaultdict(int)
    for seed in range(options.stories):
        story = scenario.plan(seed)
        with TemporaryDirectory(prefix="sq") as directory:
            outcome = scenario.run(seed, directory)
        kinds = [*(kind for kind in outcome.faults if outcome.faults[kind]), story.outage, "all"]
        for kind in {kind for kind in kinds if kind}:
            seconds[kind].append(outcome.seconds_to_equal)
            done[kind] += outcome.faults.get(kind, 0)
            resyncs[kind] += outcome.num_resyncs
    print(
        f"{'fault':<10} {'stories':>7} {'done':>7} {'resyncs':>7} {'p50':>7} {'p95':>7} {'max':>7}"
    )
    for kind in sorted(seconds, key=lambda kind: (kind == "all", kind)):
        times = seconds[kind]
        p95 = quantiles(times, n=20)[-1] if len(times) > 1 else times[0]
        print(
            f"{kind:<10}{len(times):>8}{done[kind] or '':>8}{resyncs[kind]:>8}"
            f"{median(times):>7.2f}s{p95:>7.2f}s{max(times):>7.2f}s"
        )


if __name__ == "__main__":
    main()
