"""The machine, time and load of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

LIBRARIES = ("textual", "rich", "msgspec", "pyzmq", "torch", "transformers")


class Machine(msgspec.Struct):
    """A machine, a checkout and a time."""

    cpu: str
    cores: int
    """Cores of the machine."""
    usable: int
    """Cores that this process may use."""
    python: str
    libraries: dict[str, str]
    commit: str
    date: str
    """UTC, to the minute."""
    load_before: float
    """Load average over one minute."""
    load_after: float = 0.0

    @classmethod
    def now(cls) -> Machine:
        return cls(
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
            usable=len(os.sched_getaffinity(0)),
            python=platform.python_version(),
            libraries={name: version(name) for name in LIBRARIES},
            commit=_commit(),
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            load_before=os.getloadavg()[0],
        )


def _cpu() -> str:
    """Returns the name of the processor, with its frequency if known."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine()
    megahertz = found.get("cpu MHz")
    speed = f", {float(megahertz) / 1e3:.2g} GHz" if megahertz else ""
    return found.get("model name", platform.machine()) + speed


def _commit() -> str:
    """Returns the commit that is checked out, with a `+` if files have been changed."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=here, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = "+" if git("status", "--porcelain", "--untracked-files=no", "--", "..") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed
