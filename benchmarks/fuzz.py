"""Decodes corrupted messages, seed after seed, and counts refused and accepted ones.

    python benchmarks/fuzz.py --inputs 1000000

Exits with status 1, and prints the input, at the first exception that is not a `WireError`.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter

import psutil

from tests.support.bombardment import Bombardment

INPUTS_A_SEED = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--first-seed", type=int, default=1_000)
    options = parser.parse_args()
    process = psutil.Process()
    outcomes: Counter[tuple[str, str]] = Counter()
    memory: list[int] = []
    start = time.process_time()
    for index in range(-(-options.inputs // INPUTS_A_SEED)):
        bombardment = Bombardment(options.first_seed + index)
        bombardment.run(INPUTS_A_SEED)
        outcomes += bombardment.outcomes
        del bombardment
        gc.collect()
        memory.append(process.memory_info().rss)
    print(f"{sum(outcomes.values()):,} inputs in {time.process_time() - start:,.0f} s of CPU")
    for (reader, outcome), count in sorted(outcomes.items()):
        print(f"  {reader:<10} {outcome:<8} {count:>10,}")
    tenth = max(len(memory) // 10, 1)
    print(
        f"memory (MB): {memory[0] >> 20} after the first seed,"
        f" {max(memory[:tenth]) >> 20} at most in the first tenth,"
        f" {max(memory[-tenth:]) >> 20} in the last"
    )


if __name__ == "__main__":
    main()
