"""Runs every command that reads a recording on mutated ones, with limits of time and memory.

The commands on one recording run in one child of this process, which has imported what they need: a
start of Python for each would take most of the time. The app draws without a terminal, goes to one
of its screens, and quits. A command that is killed, ends with a traceback, or takes more than the
limits, is an error that names the recording, whose number is its seed, and the command.

    python -m tests.release mutated_recordings --count 1000 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn
from unittest.mock import patch

from textual.pilot import Pilot

from seqtop.cli import main as cli
from seqtop.history import FileStore
from seqtop.tui.app import SeqtopApp
from tests.support.fuzz_recordings import MutatedRecordings
from tests.support.greedy_runs import record_run

MAX_SECONDS = 20
"""CPU time of one command, after which the kernel ends it."""
MAX_MEGABYTES = 500
_MAX_WAIT = 300
"""Seconds after which a command that computes nothing is ended, too."""
_NUM_SCREENS = 6
_NUM_REQUESTS = 4
_MODULES = (
    *("seqtop.checks.report", "seqtop.diff.report", "seqtop.explain.report"),
    *("seqtop.export.report.page", "seqtop.export.perfetto", "seqtop.export.json_document"),
    *("seqtop.ledger.report", "seqtop.misses.report", "seqtop.whatif.report"),
    "seqtop.whatif.recorded_tests_report",
)
_GATES = (
    "--slo",
    "ttft=1us,itl=1s,tpot=1s,e2e=1us,p=99",
    "--fail-if",
    "age>1ms kv>1% -status:stop",
)
_LINES = 2_000
"""Characters of standard error that are looked at from its end."""
_RECORDINGS_BETWEEN = 50
"""The recordings after which the number of those done is printed."""


def _commands(run: str, other: str, output: str, request: str) -> Iterator[tuple[str, ...]]:
    yield "show", run
    yield "show", run, "--json"
    yield "show", run, "--csv"
    yield "show", run, "--at", "9", "--text"
    yield "show", run, "--by", "priority"
    yield "show", run, "--compare", "8"
    yield "export", run, "--perfetto", "-o", output, "--force"
    yield "export", run, "--csv", "-o", output, "--force"
    yield "export", run, "--csv", "--steps", "-o", output, "--force"
    yield "export", run, "--mooncake", "-o", output, "--force"
    yield "export", run, "--otlp", "-o", output, "--force"
    yield "export", run, "--vcr", "-o", output, "--force"
    yield "export", run, "--parquet", "-o", f"{output}.d", "--force"
    yield "export", run, "--perfetto", "--redact", "-o", output, "--force"
    yield "report", run, "-o", output, "--force", "--with-text"
    yield "report", run, other, "-o", output, "--force"
    yield "check", run
    yield "check", run, "--json"
    yield "check", run, "--protocol"
    yield "check", run, "--baseline", other, "--github", *_GATES
    yield "check", other, "--baseline", run
    yield "diff", run, other
    yield "diff", other, run, "--json"
    yield "explain", run, request
    yield "explain", run, request, "--json"
    yield "explain", run, request, "--who"
    yield "explain", run, "--who"
    yield "explain", run, "--slow"
    yield "explain", run, "--cache", "--json"
    yield "whatif", run, "--set", "num_gpu_blocks=+20%"
    yield "test", run
    yield "advise", run, "--slo", "ttft=500ms"
    yield "replay", run


NUM_COMMANDS = len([*_commands("", "", "", "")])


@dataclass
class Outcome:
    """The time and memory that the commands took."""

    num_runs: int = 0
    num_recordings: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    """Runs by exit status."""
    seconds: float = 0.0
    """CPU time of the slowest run."""
    slowest: str = ""
    megabytes: float = 0.0
    """Memory of the largest process."""
    largest: str = ""
    problems: list[str] = field(default_factory=list)
    """The broken promises."""


def measure(count: int, seed: int, *, only: str | None = None) -> Outcome:
    """Runs the commands on `count` recordings.

    Args:
        count: Mutated recordings.
        seed: The seed of the first one.
        only: A command's name, if the others are not to run.
    """
    for module in _MODULES:
        importlib.import_module(module)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="sq") as folder:
        replayable, other = Path(folder, "replayable.seqtop"), Path(folder, "other.seqtop")
        # With few blocks, so that requests wait for them and are preempted.
        record_run(replayable, num_requests=_NUM_REQUESTS, num_gpu_blocks=16)
        with FileStore(replayable) as recording:
            payloads = [payload for _, payload in recording.payloads(1, recording.last)]
        whole = [payload for payload in payloads if payload is not None]
        record_run(other, num_requests=_NUM_REQUESTS)
        gc.freeze()  # the children share what is imported
        for number in range(seed, seed + count):
            choose = random.Random(number)
            recordings = MutatedRecordings(
                choose, Path(folder), whole if choose.random() < 0.5 else None
            )
            recordings.write()
            outcome.num_recordings += 1
            commands = _commands(
                f"{folder}/run.seqtop",
                str(other),
                f"{folder}/output",
                f"req-{choose.randrange(_NUM_REQUESTS)}",
            )
            try:
                _run_all([own for own in commands if only in (None, own[0])], outcome, number)
            except AssertionError as error:
                outcome.problems.append(str(error))
                print(error, file=sys.stderr)
            if outcome.num_recordings % _RECORDINGS_BETWEEN == 0:
                print(f"{outcome.num_recordings:,} of {count:,} recordings", file=sys.stderr)
    return outcome


def _run_all(commands: Sequence[Sequence[str]], outcome: Outcome, number: int) -> None:
    """Runs commands on one recording in a child of this process."""
    with tempfile.TemporaryFile() as results, tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _become(commands, results, errors.fileno(), number)
        _, status, usage = os.wait4(child, 0)
        results.seek(0)
        errors.seek(max(errors.seek(0, os.SEEK_END) - _LINES, 0))
        said = errors.read().decode(errors="replace")
        names = [f"recording {number}: {' '.join(map(os.path.basename, own))}" for own in commands]
        ended = [json.loads(line) for line in results]
    for name, (code, seconds) in zip(names, ended, strict=False):
        assert code in (0, 1, 2, 3), f"{name}: exit status {code}\n{said}"
        outcome.num_runs += 1
        outcome.statuses[code] = outcome.statuses.get(code, 0) + 1
        if seconds > outcome.seconds:
            outcome.seconds, outcome.slowest = seconds, name
    if len(ended) < len(names):
        raise AssertionError(
            f"{names[len(ended)]}: the process ended ({os.waitstatus_to_exitcode(status)}) after"
            f" {usage.ru_utime + usage.ru_stime:.1f} s of CPU\n{said}"
        )
    assert "Traceback" not in said, f"recording {number}: {said}"
    assert "Error: " not in said, f"recording {number}: {said}"
    megabytes = usage.ru_maxrss / 1024
    assert megabytes <= MAX_MEGABYTES, f"recording {number}: {megabytes:.0f} MB"
    if megabytes > outcome.megabytes:
        outcome.megabytes, outcome.largest = megabytes, f"recording {number}"


def _become(
    commands: Sequence[Sequence[str]], results: IO[bytes], errors: int, number: int
) -> NoReturn:
    """Runs commands in this process, a child, and ends it; writes status and CPU time of each."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        os.dup2(errors, 2)
        # Those of a test write elsewhere.
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        for command in commands:
            before = time.process_time()
            most = math.ceil(before) + MAX_SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
            signal.alarm(_MAX_WAIT)
            code = _status(command, number)
            results.write(json.dumps([code, time.process_time() - before]).encode() + b"\n")
            results.flush()
    finally:
        os._exit(0)


def _status(command: Sequence[str], number: int) -> int:
    """Runs a command, and returns its exit status; 70 if it raises an exception."""
    try:
        return _replay(command[1], number) if command[0] == "replay" else cli.main([*command])
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, it is shown
        traceback.print_exc()
        return 70
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()


def _replay(path: str, number: int) -> int:
    """Runs the app without a terminal: a screen at the end, a step before it, and the start."""

    async def drive(pilot: Pilot[object]) -> None:
        for key in (str(number % _NUM_SCREENS + 1), "end", "left", "home"):
            await pilot.press(key)
        pilot.app.exit(0)

    run = functools.partialmethod(SeqtopApp.run, headless=True, size=(120, 40), auto_pilot=drive)
    with (
        patch.object(SeqtopApp, "run", run),
        patch("seqtop.cli.run_app.has_terminal", return_value=True),
    ):
        return cli.main(["replay", path])


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="mutated_recordings")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="the name of one command")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    outcome = measure(options.count, options.seed, only=options.only)
    print(
        f"{outcome.num_recordings:,} recordings, {outcome.num_runs:,} runs of commands"
        f" in {time.monotonic() - started:,.0f} s; exit statuses {outcome.statuses}\n"
        f"most CPU time: {outcome.seconds:.2f} s, {outcome.slowest}\n"
        f"most memory: {outcome.megabytes:.0f} MB, {outcome.largest}"
    )
    if outcome.problems:
        raise SystemExit(f"{len(outcome.problems)} recordings with broken promises")
