"""The wheel, and environments that have it, packages that it requires, and nothing else."""

import sys
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from seqtop.process.distribution import NAME
from tests.support.commands import run

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")


def build_wheel(folder: Path) -> Path:
    """Builds the wheel of this checkout in `folder`, with nothing from the network."""
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    done = run(*PIP, "wheel", *offline, "-w", str(folder), str(ROOT))
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A virtual environment in `folder` with a wheel and what it requires with `extras`.

    The required packages are links to those of this environment.
    """

    def __init__(self, folder: Path, wheel: Path, *extras: str) -> None:
        venv.create(folder, symlinks=True)
        self.folder = folder
        self.bin = folder / "bin"
        python = str(self.bin / "python")
        done = run(*PIP, "--python", python, "install", "--no-deps", "--no-index", str(wheel))
        assert done.returncode == 0, done.stderr
        (self.packages,) = folder.glob("lib/python*/site-packages")
        (own,) = metadata.distributions(name=NAME, path=[str(self.packages)])
        for name in _required(own, extras):
            self._link(metadata.distribution(name))

    def _link(self, distribution: metadata.Distribution) -> None:
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            target = Path(str(distribution.locate_file(name)))
            link = self.packages / name
            if not link.exists():
                link.symlink_to(target)


def _required(own: metadata.Distribution, extras: tuple[str, ...]) -> set[str]:
    """The names of all packages that a package with `extras` requires, directly or not."""
    found: set[str] = set()
    pending = list(_direct(own, extras))
    while pending:
        name, wanted = pending.pop()
        if name not in found:
            found.add(name)
            pending += _direct(metadata.distribution(name), wanted)
    return found


def _direct(
    distribution: metadata.Distribution, extras: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for line in distribution.requires or ():
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            yield canonicalize_name(requirement.name), tuple(sorted(requirement.extras))
