"""Finds the first version of an engine whose scheduler decides otherwise than an older one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from seqtop.diff.comparison import Difference, compare
from seqtop.diff.run import RunDecisions
from seqtop.history.file_store import FileStore
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain
from seqtop.whatif.driver import DriverError, ReplayRequest, driver_of, run_driver
from seqtop.whatif.replay import ReplayOptions
from seqtop.whatif.workload import read_workload

_PLACE = "{version}"


class Bisection(msgspec.Struct):
    """The result of a bisection."""

    first: str
    """The oldest version."""
    last_equal: str
    """The newest version that was tried with the same decisions as the oldest one."""
    changed: str | None
    """The version that follows `last_equal`; `None` if no version decides otherwise."""
    difference: Difference | None
    """The first decision that differs between `first` and `changed`."""
    num_equal_steps: int
    """Steps before it."""
    tried: list[str]


def bisect(recording: str, python: str, versions: str) -> Bisection:
    """Replays a recording with several versions of its engine.

    Args:
        recording: The path of the recording.
        python: The path of each version's Python, with `{version}` in the place of the version.
        versions: The oldest and the newest version, such as `0.28.0..0.33.0`.

    Raises:
        DriverError: There is no such version, or a version cannot replay the recording.
        RecordingError: The recording cannot be read.
        WorkloadError: It cannot be replayed.
    """
    chosen = installed_versions(python, versions)
    with FileStore(recording) as store:
        store.require()
        module = driver_of(read_workload(store).info)
    with TemporaryDirectory(prefix="seqtop-") as directory:

        def replay(version: str) -> RunDecisions:
            path = str(Path(directory, f"{version}.seqtop"))
            request = ReplayRequest(recording, path, ReplayOptions())
            (result,) = run_driver(module, [request], python=python.replace(_PLACE, version))
            if result.error is not None:
                raise DriverError(f"{version}: {result.error}")
            with FileStore(path) as replayed:
                return RunDecisions(replayed, reads_waits=False)

        return find_change(chosen, replay)


def as_text(bisection: Bisection) -> str:
    """Returns the result as sentences."""
    first, changed = bisection.first, bisection.changed
    lines = [f"replayed by {', '.join(bisection.tried)}"]
    steps = fmt.plural(bisection.num_equal_steps, "step")
    if changed is None or (difference := bisection.difference) is None:
        lines.append(f"{bisection.last_equal} decides as {first} does: {steps} equal")
    else:
        lines += [
            f"{changed} is the first that decides otherwise than {first}: {steps} equal",
            f"  the first difference is in {difference.kind}:",
            f"  {first}: {difference.a}",
            f"  {changed}: {difference.b}",
            f"  because {difference.cause}",
        ]
        if bisection.last_equal != first:
            lines.append(f"{bisection.last_equal} still decides as {first} does")
    return plain(lines)


def as_json(bisection: Bisection) -> str:
    """Returns the result as JSON."""
    return indented_json(bisection)


def installed_versions(python: str, versions: str) -> list[str]:
    """Returns the versions that there are in a range, in order.

    Raises:
        DriverError: There are fewer than two, or the template or the range is malformed.
    """
    oldest, dots, newest = versions.partition("..")
    if _PLACE not in python:
        raise DriverError(f"--python is a path with {_PLACE} in the place of the version")
    if not dots or not oldest or not newest:
        raise DriverError(f"{versions!r} is no range of versions, such as 0.28.0..0.33.0")
    before, _, after = python.partition(_PLACE)
    folder, prefix = os.path.split(before)
    suffix = after.partition("/")[0]
    names = [path.name for path in Path(folder or ".").glob(f"{escape(prefix)}*{escape(suffix)}")]
    there = sorted((name[len(prefix) : len(name) - len(suffix)] for name in names), key=_order)
    chosen = [
        version
        for version in there
        if _order(oldest) <= _order(version) <= _order(newest)
        and Path(python.replace(_PLACE, version)).exists()
    ]
    if len(chosen) < 2:
        count = fmt.plural(len(chosen), "version")
        raise DriverError(f"{python} is there for {count} from {oldest} to {newest}")
    return chosen


def find_change(versions: Sequence[str], replay: Callable[[str], RunDecisions]) -> Bisection:
    """Returns the first of some versions whose decisions are not those of the first one.

    Of versions between, it is assumed that all from the changed one on decide otherwise.
    """
    base = replay(versions[0])
    tried = [versions[0]]
    low, high = 0, len(versions)
    difference: Difference | None = None
    num_equal = len(base.steps)
    middle = len(versions) - 1  # perhaps nothing has changed
    while high - low > 1:
        tried.append(versions[middle])
        comparison = compare(base, replay(versions[middle]))
        if comparison.first is None:
            low = middle
        else:
            high, difference = middle, comparison.first
            num_equal = comparison.num_equal_steps
        middle = (low + high) // 2
    changed = versions[high] if high < len(versions) else None
    return Bisection(versions[0], versions[low], changed, difference, num_equal, tried)


def _order(version: str) -> tuple[tuple[int, str], ...]:
    """Returns a key that orders versions: 0.9.0, 0.10.0rc1, 0.10.0."""
    parts = re.findall(r"\d+|[a-z]+", version)
    return (*((int(part), "") if part.isdigit() else (-1, part) for part in parts), (0, ""))
