"""Profiles the live app under load with `py-spy`, and adds up the samples by module.

The app attaches, on a pseudo-terminal, to an engine of 10,000 sequences that publishes 100,000
deltas per second. Needs `py-spy` (`pip install py-spy`) and the right to trace a process.

    python -m benchmarks.hot                           # shares of CPU time by module, as lines
    python -m benchmarks.hot --speedscope run.json     # the same run, for https://speedscope.app
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.feeder import feeding
from benchmarks.lag import DELTAS_A_SECOND, LIVE, stream
from benchmarks.pseudo_terminal import SIZE, on_terminal
from benchmarks.running import end_cleanly

RATE = 200
"""Samples per second."""
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^():]+)(:\d+)?\)$")

_LINE = re.compile(r":\d+\)$")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--live", type=int, default=LIVE, help="sequences")
    parser.add_argument("--rate", type=int, default=DELTAS_A_SECOND, help="deltas a second")
    parser.add_argument("--speedscope", type=Path, metavar="FILE", help="keep the profile here")
    options = parser.parse_args()
    end_cleanly()
    py_spy = shutil.which("py-spy") or sys.exit("py-spy is needed: pip install py-spy")
    state, payloads, per_second = stream(options.live, options.seconds + 6, options.rate)
    with (
        tempfile.TemporaryDirectory() as directory,
        feeding(state, payloads, per_second=per_second) as feeder,
        on_terminal("-m", "seqtop", "attach", feeder.endpoint) as program,
    ):
        program.read_until(SIZE[0] * SIZE[1])
        feeder.go()
        program.read(3)  # warm-up
        raw = Path(directory, "raw")
        out, form = (options.speedscope, "speedscope") if options.speedscope else (raw, "raw")
        command = [py_spy, "record", "--pid", str(program.process.pid), "--output", str(out)]
        command += ["--duration", str(options.seconds), "--rate", str(RATE), "--format", form]
        # Only samples of the thread that holds the GIL: waiting costs nothing.
        recorder = subprocess.Popen(
            [*command, "--threads", "--gil"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        while recorder.poll() is None:
            program.read(0.1)
        if recorder.returncode:
            assert recorder.stderr is not None
            sys.exit(recorder.stderr.read().decode())
        if not options.speedscope:
            report(raw.read_text().splitlines(), options.seconds)


def report(lines: Iterable[str], seconds: float) -> None:
    """Prints the shares of the samples by thread, by module and by function."""
    threads: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        number = int(count)
        threads[frames[0].rpartition(": ")[2]] += number
        modules[module_of(frames[-1])] += number
        functions[_LINE.sub(")", frames[-1])] += number
    total = sum(threads.values())
    busy = total / (RATE * seconds)
    print(f"{total} samples at work in {seconds:g} s, {busy:.0%} of the time")
    for title, found in (("thread", threads), ("module", modules), ("function", functions)):
        print(f"\nby {title}")
        for name, number in found.most_common(16):
            print(f"{number / total:>7.1%}  {name}")


def module_of(frame: str) -> str:
    """Returns the module of a frame, `seqtop/state/decodes`, or the name of a library."""
    matched = _FRAME.match(frame)
    if matched is None:
        return frame
    file = matched["file"].removesuffix(".py")
    library = file.partition("site-packages/")[2] or file
    return library if library.startswith("seqtop") else library.partition("/")[0]


if __name__ == "__main__":
    main()
