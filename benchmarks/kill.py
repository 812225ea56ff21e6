"""Kills recorders, engines and viewers with SIGKILL, a hundred times at random moments.

    python benchmarks/kill.py

Exits with status 1 at the first violation of a guarantee.
"""

from __future__ import annotations

import argparse
from tempfile import TemporaryDirectory

from tests.support import killing

ROUNDS = ((killing.kill_recorder, 40), (killing.kill_engine, 30), (killing.kill_viewer, 30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first-seed", type=int, default=1_000)
    options = parser.parse_args()
    for play, count in ROUNDS:
        said = ""
        for seed in range(options.first_seed, options.first_seed + count):
            with TemporaryDirectory(prefix="sq") as directory:
                said = play(seed, directory)
        print(f"{play.__name__}: {count} rounds; the last: {said}", flush=True)


if __name__ == "__main__":
    main()
