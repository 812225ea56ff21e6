"""The table of versions in docs/vllm.md: each is installed and started once with a mixed run.

    python tests/vllm/versions.py [--delete] [VERSION…]

Run by `make test-vllm-versions`. A row replaces that of the same version; those of others stay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCUMENT = ROOT / "docs/vllm.md"
VERSIONS = (
    "0.33.0 0.32.0 0.31.0 0.30.0 0.29.0 0.28.0 0.27.1 0.26.0 0.25.1 0.24.0 0.23.0 0.22.1 0.21.0"
    " 0.20.2 0.19.1 0.18.1 0.17.1 0.16.0 0.15.1 0.14.1 0.13.0 0.12.0 0.11.2"
).split()
"""The last one of each minor version."""
SECONDS = 900
HEADER = "| vLLM | steps, without and with async scheduling | not available |\n|---|---|---|\n"


def run(version: str) -> dict[str, Any]:
    """The outcome of the mixed run with a version, which is installed first."""
    folder = ROOT / ".venv-vllm" / "vllm" / version
    make = ["make", f"VLLM_VERSION={version}", f".venv-vllm/vllm/{version}/installed"]
    done = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": f"not installed: {last_line(done.stderr)}"}
    environ = {
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, HERE))),
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [ROOT / ".venv-vllm/bin/python", HERE / "mixed_run.py"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode:
        print(done.stderr[-3_000:], file=sys.stderr)
        return {"error": f"does not start: {last_line(done.stderr)}"}
    outcome: dict[str, Any] = json.loads(last_line(done.stdout))
    if any("error" in part for part in outcome.values()):
        print(done.stderr[-6_000:], file=sys.stderr)
    return outcome


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1]


def row(version: str, outcome: dict[str, Any]) -> str:
    """The row of the table for a version."""
    if "error" in outcome:
        return f"| {version} | - | {cell(outcome['error'])} |\n"
    ways = [outcome[way] for way in ("sync", "async")]
    errors = {way.get("error") for way in ways}
    if len(errors) == 1 and None not in errors:
        return row(version, ways[0])
    steps = ", ".join(cell(way["error"]) if "error" in way else str(way["steps"]) for way in ways)
    missing = {key: why for way in ways for key, why in way.get("not_available", {}).items()}
    reasons = "; ".join(f"`{key}`: {cell(why)}" for key, why in sorted(missing.items()))
    return f"| {version} | {steps} | {reasons} |\n"


def cell(text: str) -> str:
    """Text that fits into a cell."""
    return " ".join(text.split()).replace("|", "\\|")[:200]


def with_row(document: str, version: str, new: str) -> str:
    """The document with the row of a version in its table, the newest version first."""
    before, header, after = document.partition(HEADER)
    assert header, "the document has no table of versions"
    lines = after.splitlines(keepends=True)
    end = next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))
    rows = {line.split("|")[1].strip(): line for line in lines[:end]} | {version: new}
    newest_first = sorted(rows, key=lambda name: [*map(int, name.split("."))], reverse=True)
    table = "".join(rows[name] for name in newest_first)
    return before + header + table + "".join(lines[end:])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--delete", action="store_true", help="delete what was installed here")
    options = parser.parse_args()
    has_failed = False
    for version in options.versions:
        folder = ROOT / ".venv-vllm" / "vllm" / version
        was_there = folder.exists()
        outcome = run(version)
        has_failed |= "error" in outcome or any("error" in part for part in outcome.values())
        new = row(version, outcome)
        print(new, end="", flush=True)
        DOCUMENT.write_text(with_row(DOCUMENT.read_text(), version, new))
        if options.delete and not was_there:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
