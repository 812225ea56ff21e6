"""Runs one of the release tests at full length, and prints its figures.

python -m tests.release advice --workloads 20
python -m tests.release attacks --rounds 7
python -m tests.release bombs
python -m tests.release fleet --engines 20
python -m tests.release healing --stories 200
python -m tests.release injected_bugs
python -m tests.release kubernetes_pods
python -m tests.release large_states
python -m tests.release mutants whatif
python -m tests.release mutated_recordings --count 1000
python -m tests.release open_viewers --steps 100000
python -m tests.release ray_cluster
python -m tests.release scheduler_mutants
python -m tests.release soak --minutes 60
python -m tests.release stress --requests 10000
python -m tests.release whatif pairs
"""

import importlib
import sys

NAMES = (
    "advice",
    "attacks",
    "bombs",
    "fleet",
    "healing",
    "injected_bugs",
    "kubernetes_pods",
    "large_states",
    "mutants",
    "mutated_recordings",
    "open_viewers",
    "ray_cluster",
    "scheduler_mutants",
    "soak",
    "stress",
    "whatif",
)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print(__doc__)
        sys.exit(2)
    importlib.import_module(f"tests.release.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    main()
