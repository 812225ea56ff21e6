"""Measures all rows, or those named, and prints one table (`python -m benchmarks`)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks import report
from benchmarks.running import ROWS, end_cleanly, in_turn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing, for a try")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the figures here; rows that it holds already and that are not run are kept",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page of them here")
    options = parser.parse_args()
    if unknown := [name for name in options.rows if name not in ROWS]:
        parser.error(f"no row {', '.join(unknown)}: there are {', '.join(ROWS)}")
    end_cleanly()
    console, started = Console(), time.monotonic()
    names = options.rows or list(ROWS)
    rows = in_turn(names, tiny=options.tiny, console=console)
    has_failed = len(rows) < len(names)
    if options.json:
        old = (
            msgspec.json.decode(options.json.read_bytes(), type=report.Document).rows
            if options.json.exists()
            else []
        )
        rows = report.merged(old, rows, ROWS)
        options.json.write_bytes(report.to_json(rows))
    report.show(rows, console)
    if options.markdown:
        options.markdown.write_text(report.markdown(rows))
    console.print(f"{time.monotonic() - started:.0f} s")
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
