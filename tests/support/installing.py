"""The wheels, and environments that have them, packages that they require, and nothing else."""

from __future__ import annotations

import shutil
import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seqtop.process.distribution import ENGINE, NAME
from tests.support.commands import run

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")


def build_wheel(folder: Path, project: Path = ROOT) -> Path:
    """Builds the wheel of a project of this checkout, with nothing from the network.

    `folder` is empty, or is not there yet.
    """
    # As pip does it, whose own start takes longer.
    program = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    done = run(sys.executable, "-c", program, cwd=project)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment in `folder` with wheels, and what the first requires with `extras`.

    The required packages are links to those of this environment, and what the wheels have in common
    with `like`, another environment, are links to that: they are compiled once.
    """

    def __init__(
        self, folder: Path, *wheels: Path, extra: str = "", like: Environment | None = None
    ) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.bin = folder / "bin"
        python = str(self.bin / "python")
        install = ("install", "--no-deps", "--no-index", "--no-compile", *map(str, wheels))
        done = run(*PIP, "--python", python, *install)
        assert done.returncode == 0, done.stderr
        (self.packages,) = folder.glob("lib/python*/site-packages")
        if like is not None:
            for package in like.packages.iterdir():
                if not package.is_symlink() and (package / "__init__.py").exists():
                    shutil.rmtree(self.packages / package.name)
                    (self.packages / package.name).symlink_to(package)
        (own,) = metadata.distributions(name=NAME, path=[str(self.packages)])
        for name in _required(own, (extra,)) - {NAME, ENGINE}:
            self._link(metadata.distribution(name))

    def _link(self, distribution: metadata.Distribution) -> None:
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            target = Path(str(distribution.locate_file(name)))
            link = self.packages / name
            if not link.exists():
                link.symlink_to(target)


def _required(own: metadata.Distribution, extras: tuple[str, ...]) -> set[str]:
    """The names of all packages that a package with `extras` requires, directly or not."""
    found: set[tuple[str, tuple[str, ...]]] = set()
    pending = list(_direct(own, extras))
    while pending:
        each = name, wanted = pending.pop()
        if each not in found:
            found.add(each)
            pending += _direct(metadata.distribution(name), wanted)
    return {name for name, _ in found}


def _direct(
    distribution: metadata.Distribution, extras: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for line in distribution.requires or ():
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield canonicalize_name(requirement.name), tuple(sorted(requirement.extras))
