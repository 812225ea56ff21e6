"""Faults of single operators in a room of seqtop, and whether the tests of the room fail.

python -m tests.release mutants whatif                    # a hundred, of seed 0
python -m tests.release mutants diff --count 30 --seed 7
python -m tests.release mutants diff --only 12 40         # those with these numbers

A room is a folder of `seqtop/`; its tests are the folder of the same name in `tests/`. A fault is a
comparison, an arithmetic or a boolean operator, a small constant or a function such as `min` that
is another one. Each is made in a copy of the repository, where the tests that call the changed
function run first, then all of the room if fixtures call it. A run that hangs has found it, too.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.source_changes import changed, places

_REPOSITORY = Path(__file__).parents[2]
_TESTS_FAILED, _INTERRUPTED = 1, 2
"""Statuses of pytest: a test failed; a module cannot be imported."""
_SECONDS = 60.0
"""The limit of a test, as pytest-timeout applies it."""
_FASTEST = 40
"""Tests that run before the others of a function: the shortest of those that call it."""


class Mutant(NamedTuple):
    """A fault, and where it is."""

    number: int
    """Among all that the room can have, in the order of its modules."""
    path: Path
    """Of the module, relative to the repository."""
    place: int
    """Among the places of the module."""
    line: int
    function: int
    """The first line of the function that contains it."""


class Outcome(NamedTuple):
    """The result of the tests of the room with a fault."""

    mutant: Mutant
    is_found: bool
    """False for a fault with which all tests pass."""
    num_tests: int
    """Tests that were chosen, those of the last run."""
    difference: str
    """The changed line: before, after."""


def all_mutants(room: str) -> Iterator[Mutant]:
    """Yields every fault that a room can have."""
    number = 0
    for path in sorted((_REPOSITORY / "seqtop" / room).rglob("*.py")):
        relative = path.relative_to(_REPOSITORY)
        source = path.read_text(encoding="utf-8")
        for index, place in enumerate(places(source)):
            yield Mutant(number, relative, index, place.line, place.function)
            number += 1


def sample(room: str, count: int, seed: int) -> list[Mutant]:
    """Returns `count` faults of a room, chosen by the seed, in the order of the source."""
    mutants = list(all_mutants(room))
    return sorted(random.Random(seed).sample(mutants, min(count, len(mutants))))


class Room:
    """A copy of the repository in which the tests of a room run."""

    def __init__(self, room: str, folder: Path) -> None:
        self._tests = f"tests/{room}"
        self._folder = folder
        for name in _files():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(_REPOSITORY / name, path)
        file = folder / "called.json"
        options = ["-p", "tests.support.called_functions"]
        options += ["--called-in", str(folder / "seqtop" / room), "--called-file", str(file)]
        status = self._run([self._tests, *options])
        if status:
            raise RuntimeError(f"{self._tests} fails without a fault: status {status}")
        calls = json.loads(file.read_text(encoding="utf-8"))
        self._in_fixtures = set(calls.pop("", {"functions": []})["functions"])
        self._by_function: dict[str, list[str]] = {}
        for test in sorted(calls, key=lambda test: float(calls[test]["seconds"])):
            for function in calls[test]["functions"]:
                self._by_function.setdefault(function, []).append(test)

    def _run(self, arguments: Sequence[str]) -> int:
        environment = dict(
            os.environ,
            PYTHONPATH=str(self._folder),
            OMP_NUM_THREADS="1",
            PYTHONDONTWRITEBYTECODE="",
        )
        options = [
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not release",
            "--timeout",
            str(_SECONDS),
        ]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode

    def try_out(self, mutant: Mutant) -> Outcome:
        """Runs the tests with a fault, and takes it back."""
        path = self._folder / mutant.path
        source = path.read_text(encoding="utf-8")
        faulty = changed(source, mutant.place)
        path.write_text(faulty, encoding="utf-8")
        try:
            is_found, num_tests = self._is_found(f"{path.resolve()}:{mutant.function}")
        finally:
            path.write_text(source, encoding="utf-8")
        return Outcome(mutant, is_found, num_tests, _difference(source, faulty))

    def _is_found(self, function: str) -> tuple[bool, int]:
        tests = self._by_function.get(function, [])
        rounds = [tests[:_FASTEST], tests[_FASTEST:]]
        if function in self._in_fixtures:
            rounds.append([self._tests])
        for chosen in filter(None, rounds):
            status = self._run(chosen)
            if status in {_TESTS_FAILED, _INTERRUPTED}:
                return True, len(tests)
            if status:
                raise RuntimeError(f"pytest ended with status {status} for {function}")
        return False, len(tests)


def _files() -> Iterator[str]:
    """Yields the files of the repository, new ones too, but none that git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(command, cwd=_REPOSITORY, text=True).split("\0")
    yield from (name for name in names if (_REPOSITORY / name).is_file())


def _difference(source: str, faulty: str) -> str:
    """Returns the changed line of two versions of a module, in one form."""
    before = ast.unparse(ast.parse(source))  # without comments, in the same layout
    lines = difflib.unified_diff(before.splitlines(), faulty.splitlines(), n=0, lineterm="")
    return "\n".join(
        f"      {line}" for line in lines if line[0] in "+-" and line[:3] not in {"+++", "---"}
    )


def measure(room: str, mutants: Sequence[Mutant]) -> Iterator[Outcome]:
    """Yields what becomes of each fault."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        tests = Room(room, Path(name).resolve())
        for mutant in mutants:
            yield tests.try_out(mutant)


def main(arguments: list[str]) -> None:
    """Prints the faults that no test finds, and how many are found."""
    parser = argparse.ArgumentParser(prog="python -m tests.release mutants")
    parser.add_argument("room")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", default=(), metavar="NUMBER")
    options = parser.parse_args(arguments)
    mutants = sample(options.room, options.count, options.seed)
    if options.only:
        mutants = [own for own in all_mutants(options.room) if own.number in options.only]
    begun, counts = time.perf_counter(), Counter[str]()
    for outcome in measure(options.room, mutants):
        mutant = outcome.mutant
        counts["found" if outcome.is_found else "not found"] += 1
        if not outcome.is_found:
            print(
                f"{mutant.number:5} {mutant.path}:{mutant.line}, {outcome.num_tests} tests call it"
            )
            print(outcome.difference, flush=True)
    seconds = time.perf_counter() - begun
    print(f"{options.room}: {counts['found']} of {len(mutants)} are found, in {seconds:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
