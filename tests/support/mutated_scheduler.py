"""Copies of the bundled engine with a fault in the source of its scheduler."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import engine_stub
from tests.support.source_changes import changed, places

_SOURCE = Path(engine_stub.__file__).parent


class Mutant(NamedTuple):
    """A fault: a piece of the source that is in it once, and what takes its place."""

    name: str
    module: str
    """The name of a module in `engine_stub/core/`."""
    old: str
    new: str


class OperatorMutant(NamedTuple):
    """A fault: an operator, a small number or a function that is another one."""

    name: str
    module: str
    source: str
    """The source of the module with the fault."""


def copy_package(folder: Path) -> Path:
    """Makes a copy of the package, whose files are links; returns its folder.

    A Python that starts in `folder` runs it, since it looks for modules there first.
    """
    package = folder / "engine_stub"
    shutil.copytree(
        _SOURCE, package, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
    )
    return package


@contextmanager
def applied(package: Path, mutant: Mutant | OperatorMutant) -> Iterator[None]:
    """Applies a fault to a copy of the package, and takes it back."""
    original = _SOURCE / "core" / f"{mutant.module}.py"
    path = package / "core" / original.name
    compiled = Path(cache_from_source(str(path)))
    path.unlink()
    path.write_text(_changed(mutant, original), encoding="utf-8")
    compiled.unlink(missing_ok=True)
    try:
        yield
    finally:
        path.unlink()
        path.symlink_to(original)
        compiled.unlink(missing_ok=True)


def _changed(mutant: Mutant | OperatorMutant, original: Path) -> str:
    if isinstance(mutant, OperatorMutant):
        return mutant.source
    text = original.read_text(encoding="utf-8")
    count = text.count(mutant.old)
    assert count == 1, f"{mutant.name}: its piece of {original.name} is there {count} times"
    return text.replace(mutant.old, mutant.new)


def operator_mutants(module: str, without: frozenset[str]) -> Iterator[OperatorMutant]:
    """Yields a fault for each operator, small number, and function such as `min` of a module.

    Args:
        module: The name of a module in `engine_stub/core/`.
        without: Names of functions that are left as they are.
    """
    text = (_SOURCE / "core" / f"{module}.py").read_text(encoding="utf-8")
    for number, place in enumerate(places(text, without)):
        name = f"{module}.py, line {place.line}, {number}: {place.text}"
        yield OperatorMutant(name, module, changed(text, number, without))
