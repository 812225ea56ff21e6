"""The row "generation": the bundled engine against transformers and bare products.

`benchmarks/engine.py` measures, and describes the method; this module turns a quick run of it into
figures with targets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import running
from benchmarks.figure import Figure, Findings, Limit

TITLE = "The bundled engine"
MAX_PUBLISHING = 0.02
"""Of the CPU time of a step. A step of 256 sequences has a target of its own in `publish.py`."""
_VIEWERS = {"viewer": "with a viewer", "no_viewer": "without viewers"}
SCRIPT = Path(__file__).with_name("engine.py")


def measure(*, tiny: bool = False) -> Findings:
    return figures(_run(tiny=tiny))


def figures(found: dict[str, Any]) -> Findings:
    """Returns the results of `engine.py` as figures with targets."""
    measured = f"best of {found['rounds']}, {found['threads']} threads"
    result: list[Figure] = []
    for size, rates in found["all_at_once"].items():
        tokens = rates["engine_tokens_per_second"]
        result += [
            Figure(
                what=f"{size} at once",
                measured=f"wall, {measured}",
                value=tokens,
                unit="tokens/s",
                peer=f"{peer}",
                peer_value=rates[f"{key}_tokens_per_second"],
                ratio=rates[f"of_{key}"],
            )
            for key, peer in (
                ("generate", "transformers' generate()"),
                ("batching", "transformers' continuous batching"),
            )
        ]
        result.append(
            Figure(
                what=f"a decode step of {size}",
                measured="wall, medians",
                value=rates["decode_step_seconds"] * 1e3,
                unit="ms",
                peer="the products with every weight matrix alone",
                peer_value=rates["plain_products_seconds"] * 1e3,
                ratio=rates["of_plain_products"],
                ratio_unit="%",
            )
        )
    result += [
        Figure(
            what=f"{size} at once, bfloat16",
            measured=f"wall, {measured}",
            value=rates["engine_tokens_per_second"],
            unit="tokens/s",
            peer="transformers' generate()",
            peer_value=rates["generate_tokens_per_second"],
            ratio=rates["of_generate"],
        )
        for size, rates in found["bfloat16"].items()
    ]
    trace = found["trace"]
    for key, peer in (("generate", "generate()"), ("batching", "continuous batching")):
        result.append(
            Figure(
                what=f"{trace['requests']} requests that arrive at random",
                measured=f"wall, {measured}",
                value=trace["engine"]["tokens_per_second"],
                unit="tokens/s",
                peer=f"transformers' {peer}",
                peer_value=trace[key]["tokens_per_second"],
                ratio=trace[key]["engine_is"],
            )
        )
    result += [
        Figure(
            what=f"publishing, {size} in decode, {_VIEWERS[viewers]}",
            measured="CPU of the engine's thread, of that of the steps",
            value=rates["of_cpu_time"],
            unit="%",
            limit=Limit(MAX_PUBLISHING),
        )
        for size, measured in found["publishing"].items()
        for viewers, rates in measured.items()
    ]
    return Findings(result)


def _run(*, tiny: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "engine.json")
        command = [sys.executable, str(SCRIPT), "--quick", "--json", str(path)]
        command += ["--threads", str(len(os.sched_getaffinity(0)))]
        command += ["--requests", "4"] * tiny
        subprocess.run(command, check=True, capture_output=True)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


if __name__ == "__main__":
    running.alone(measure)
