"""The distribution that brings this package: its name, and the advice to install more of it."""

from __future__ import annotations

import sysconfig
from pathlib import Path

NAME = "seqtop-llm"
"""The name on PyPI, where `seqtop` is another program: it monitors nanopore sequencing."""

ENGINE = f"{NAME}-engine"
"""The distribution of the bundled engine and its weights, which the extras name."""


def install_command(extra: str) -> str:
    """Returns the command that installs this distribution with `extra`."""
    return f"pip install '{NAME}[{extra}]'"


def other_seqtop() -> str | None:
    """Returns a sentence if PyPI's other `seqtop` is installed here, too.

    Both install a script `seqtop`: the one that was installed last starts, and uninstalling either
    removes it.
    """
    # `importlib.metadata` would add 20 ms to each start.
    packages = Path(sysconfig.get_path("purelib"))
    if not any(packages.glob("seqtop-*-info")):
        return None
    return (
        "another program named seqtop, for nanopore sequencing, is installed here, too, and both"
        " have a command of that name: pip uninstall seqtop, then"
        f" pip install --force-reinstall --no-deps {NAME}; python -m seqtop works in any case"
    )
