"""Feeds mutated inputs of all kinds, or of some, and prints how many got past the decoder.

    python -m tests.fuzz --count 1000000 --seed 1
    python -m tests.fuzz wire kv_events --count 400000

Exits with a traceback that names the kind, the seed and the input, at the first exception that is
not the promised one. Ctrl-C ends the present kind after its round, and prints its line.
"""

import argparse
import signal
import sys
import threading
import time

from tests.support import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(fuzz.KINDS)}")
    parser.add_argument("--count", type=int, default=100_000, help="inputs of all kinds together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    kinds = options.kinds or fuzz.KINDS
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    for kind in kinds:
        interrupted.clear()
        started = time.process_time()
        count = -(-options.count // len(kinds))
        result = fuzz.run(kind, count, options.seed, interrupted.is_set)
        seconds = time.process_time() - started
        memory = [size >> 20 for size in result.memory]
        print(
            f"{kind:<11}{result.num_inputs:>9,} inputs, {result.share:4.0%} past the decoder,"
            f" {seconds:6,.0f} s of CPU, memory {memory[0]} MB after the first"
            f" {min(fuzz.INPUTS_PER_ROUND, result.num_inputs):,}, at most {max(memory)},"
            f" {memory[-1]} at the end",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
