"""Runs one benchmark, or several in processes of their own."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks import report
from benchmarks.figure import Findings
from benchmarks.machine import Machine
from benchmarks.report import Row

ROWS = (
    "painting",
    "sorted_painting",
    "ingest",
    "lag",
    "step_bytes",
    "publish",
    "decoding",
    "late_join",
    "start",
    "idle",
    "memory",
    "seek",
    "diff",
    "checking",
    "generation",
)
"""The modules of the table, in its order."""

ROOT = Path(__file__).resolve().parents[1]


def alone(measure: Callable[..., Findings]) -> None:
    """Measures and prints the table of one row (`python -m benchmarks.NAME`)."""
    name = Path(sys.modules["__main__"].__file__ or "").stem
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing, for a try")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options = parser.parse_args()
    end_cleanly()
    machine, started = Machine.now(), time.monotonic()
    findings = measure(tiny=options.tiny)
    machine.load_after = os.getloadavg()[0]
    row = Row(name, title_of(name), findings, machine, time.monotonic() - started)
    report.show([row], Console())
    if options.json:
        options.json.write_bytes(report.to_json([row]))


def end_cleanly() -> None:
    """Turns SIGTERM into an exception, so that all started programs are ended."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def title_of(name: str) -> str:
    return str(__import__(f"benchmarks.{name}", fromlist=["TITLE"]).TITLE)


def in_turn(names: list[str], *, tiny: bool, console: Console) -> list[Row]:
    """Measures each of the rows `names` in a process of its own; reports and skips failed ones."""
    rows: list[Row] = []
    for name in names:
        console.print(f"[dim]{name} …[/]", highlight=False)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "row.json")
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command + ["--tiny"] * tiny,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                console.print(f"{name} failed:\n{done.stderr[-2_000:]}", markup=False)
            else:
                rows += msgspec.json.decode(path.read_bytes(), type=report.Document).rows
    return rows
