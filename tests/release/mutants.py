"""Faults of single operators in a room of seqtop, and whether the tests of the room fail.

python -m tests.release mutants whatif                    # a hundred, of seed 0
python -m tests.release mutants diff --count 30 --seed 7
python -m tests.release mutants diff --only 12 40         # those with these numbers

A room is a folder of `seqtop/`; its tests are the folder of the same name in `tests/`. A fault is a
comparison, an arithmetic or a boolean operator, a small constant or a function such as `min` that
is another one. The tests are collected once. For each fault, a fork of that process has the code of
the function replaced, and runs the tests that call it, the fastest first, until one fails; then all
others of the room if fixtures call it. A test that hangs has found the fault, too. Programs that
tests start, and what is computed when a module is imported, are without it.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import gc
import os
import pickle
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

from tests.support.source_changes import changed, places

_REPOSITORY = Path(__file__).parents[2]
_SECONDS = 60
"""The limit of a test, as pytest-timeout applies it."""


class Mutant(NamedTuple):
    """A fault, and where it is."""

    number: int
    """Among all that the room can have, in the order of its modules."""
    path: Path
    """Of the module."""
    place: int
    """Among the places of the module."""
    line: int
    function: int
    """The first line of the function that contains it."""


class Called(NamedTuple):
    """The functions of a room that its tests enter, each as path and first line."""

    by_test: dict[str, set[tuple[str, int]]]
    in_fixtures: set[tuple[str, int]]
    """These may be shared by tests."""
    seconds: dict[str, float]
    """The time of each test."""
    failed: str | None
    """The first test that failed; `None` if none did."""


def all_mutants(room: str) -> Iterator[Mutant]:
    """Yields every fault that a room can have."""
    number = 0
    for path in sorted((_REPOSITORY / "seqtop" / room).rglob("*.py")):
        for index, place in enumerate(places(path.read_text(encoding="utf-8"))):
            yield Mutant(number, path, index, place.line, place.function)
            number += 1


def sample(room: str, count: int, seed: int) -> list[Mutant]:
    """Returns `count` faults of a room, chosen by the seed, in the order of the source."""
    mutants = list(all_mutants(room))
    return sorted(random.Random(seed).sample(mutants, min(count, len(mutants))))


class Trials:
    """A plugin of pytest that runs the collected tests once for each fault, in forks."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._mutants = mutants
        self.num_found = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = session.items
        called: Called = pickle.loads(_in_fork(lambda: pickle.dumps(_calls(session, items))))
        if called.failed:
            raise RuntimeError(f"fails without a fault: {called.failed}")
        for mutant in self._mutants:
            function = str(mutant.path), mutant.function
            tests = [item for item in items if function in called.by_test[item.nodeid]]
            tests.sort(key=lambda item: called.seconds[item.nodeid])
            chosen = tests.copy()
            if function in called.in_fixtures:
                chosen += [item for item in items if item not in tests]
            if _in_fork(partial(_passes, session, chosen, mutant)) == b"passed":
                source = mutant.path.read_text(encoding="utf-8")
                path = mutant.path.relative_to(_REPOSITORY)
                print(f"{mutant.number:5} {path}:{mutant.line}, {len(tests)} tests call it")
                print(_difference(source, changed(source, mutant.place)), flush=True)
            else:
                self.num_found += 1
        return True


def _in_fork(run: Callable[[], bytes]) -> bytes:
    """Returns what `run` returns in a fork of this process; nothing if the fork died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b""
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            answer = run()
        finally:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(answer)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def _first_failed(session: pytest.Session, items: Sequence[pytest.Item]) -> str | None:
    """Runs tests until one fails; returns its id."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return item.nodeid
    return None


def _passes(session: pytest.Session, items: Sequence[pytest.Item], mutant: Mutant) -> bytes:
    """Returns `passed` if no test fails with a fault."""
    _make(mutant)
    return b"" if _first_failed(session, items) else b"passed"


def _make(mutant: Mutant) -> None:
    """Replaces the code of functions of this process by that with a fault."""
    source = mutant.path.read_text(encoding="utf-8")
    before = compile(source, mutant.path, "exec", dont_inherit=True)
    after = compile(changed(source, mutant.place), mutant.path, "exec", dont_inherit=True)
    replaced = dict(zip(_codes(before), _codes(after), strict=True))
    gc.unfreeze()  # tests/conftest.py has frozen what there was
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__ in replaced:
            function.__code__ = replaced[function.__code__]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those inside it, in the order of the source."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _calls(session: pytest.Session, items: Sequence[pytest.Item]) -> Called:
    """Runs tests, and returns the functions that each calls."""
    by_test: dict[str, set[CodeType]] = defaultdict(set)
    seconds: dict[str, float] = defaultdict(float)
    entered = in_fixtures = set[CodeType]()

    def note(frame: FrameType, *_: Any) -> None:  # of lines, nothing is noted
        entered.add(frame.f_code)

    class Calls:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
            nonlocal entered
            entered, begun = by_test[item.nodeid], time.perf_counter()
            try:
                return (yield)
            finally:
                seconds[item.nodeid] = time.perf_counter() - begun
                entered = in_fixtures

    session.config.pluginmanager.register(Calls())
    sys.settrace(note)
    threading.settrace(note)
    failed = _first_failed(session, items)
    sys.settrace(None)
    return Called(
        {item.nodeid: _positions(by_test[item.nodeid]) for item in items},
        _positions(in_fixtures),
        {item.nodeid: seconds[item.nodeid] for item in items},
        failed,
    )


def _positions(codes: Iterable[CodeType]) -> set[tuple[str, int]]:
    return {(code.co_filename, code.co_firstlineno) for code in codes}


def _difference(source: str, faulty: str) -> str:
    """Returns the changed line of two versions of a module, in one form."""
    before = ast.unparse(ast.parse(source))  # without comments, in the same layout
    lines = difflib.unified_diff(before.splitlines(), faulty.splitlines(), n=0, lineterm="")
    return "\n".join(
        f"      {line}" for line in lines if line[0] in "+-" and line[:3] not in {"+++", "---"}
    )


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
    begun, trials = time.perf_counter(), Trials(mutants)
    with contextlib.chdir(_REPOSITORY):
        status = pytest.main(
            [
                f"tests/{options.room}",
                *("--override-ini", "addopts=--import-mode=importlib", "--capture=no"),
                *("-p", "no:cacheprovider", "-p", "no:terminal"),
                *("-m", "not release", f"--timeout={_SECONDS}"),
            ],
            [trials],
        )
    if status:
        raise SystemExit(f"pytest ended with status {status}")
    seconds = time.perf_counter() - begun
    print(f"{options.room}: {trials.num_found} of {len(mutants)} are found, in {seconds:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
