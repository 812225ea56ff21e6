"""The first version that decides otherwise."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from seqtop.diff.comparison import Difference
from seqtop.diff.run import RunDecisions
from seqtop.whatif.bisect import (
    Bisection,
    _order,
    as_json,
    as_text,
    bisect,
    find_change,
    installed_versions,
)
from seqtop.whatif.driver import DRIVERS, DriverError, ReplayRequest
from seqtop.whatif.replay import ReplayResult
from tests.support.broken_recordings import RIGHT, record
from tests.support.decided_runs import NO_DECISION, a_run
from tests.support.events import engine_info


def test_the_first_change_is_found_among_any_versions() -> None:
    """Of two to sixteen, of which each may be the first that decides otherwise."""
    step = [NO_DECISION, NO_DECISION._replace(tokens=1)]
    same, other = a_run(step), a_run([NO_DECISION, NO_DECISION._replace(tokens=2)])
    for count in range(2, 17):
        versions = [str(number) for number in range(count)]
        for changed in range(1, count + 1):

            def replay(version: str, changed: int = changed) -> RunDecisions:
                return other if int(version) >= changed else same

            found = find_change(versions, replay)
            is_there = changed < count
            assert found.changed == (str(changed) if is_there else None)
            assert (found.first, found.last_equal) == ("0", str(changed - 1))
            assert found.num_equal_steps == (1 if is_there else 2)
            assert (found.difference is not None) is is_there
            assert found.tried[:2] == ["0", str(count - 1)]
            assert len(found.tried) == len({*found.tried}) <= 2 + (count - 1).bit_length()
            if not is_there:
                assert len(found.tried) == 2, "the newest version is enough"


def test_versions_are_in_order() -> None:
    versions = ["0.9rc1", "0.9rc2", "0.9", "0.9.0", "0.9.1", "0.10.0rc1", "0.10.0", "1.0"]
    keys = [*map(_order, versions)]
    assert all(key < after for key, after in itertools.pairwise(keys))


@pytest.mark.parametrize("fault", [None, "it refuses all"])
def test_each_version_replays_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    path, pythons = tmp_path / "run.seqtop", list[str]()
    record(path, (engine_info(engine="vLLM 1"), *RIGHT[1:]))
    for version in ("1", "2"):
        (tmp_path / f"python-{version}").touch()

    def run_driver(
        module: str, requests: Sequence[ReplayRequest], *, python: str
    ) -> Iterator[ReplayResult]:
        assert (module, [own.source for own in requests]) == (DRIVERS["vLLM"], [str(path)])
        pythons.append(python)
        shutil.copy(path, requests[0].output or "")
        yield ReplayResult(error=fault)

    monkeypatch.setattr("seqtop.whatif.bisect.run_driver", run_driver)
    template = f"{tmp_path}/python-{{version}}"
    if fault is not None:
        with pytest.raises(DriverError, match="1: it refuses all"):
            bisect(str(path), template, "1..2")
        return
    found = bisect(str(path), template, "1..2")
    assert (found.last_equal, found.changed, found.num_equal_steps) == ("2", None, 6)
    assert pythons == [f"{tmp_path}/python-{version}" for version in found.tried]


DIFFERENCE = Difference("admission", "one", "other", 5, 5, "of a limit")


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        (
            Bisection("1", "3", None, None, 1_000, ["1", "3"]),
            ["replayed by 1, 3", "3 decides as 1 does: 1,000 steps equal"],
        ),
        (
            Bisection("1", "1", "2", DIFFERENCE, 1, ["1", "2"]),
            [
                "replayed by 1, 2",
                "2 is the first that decides otherwise than 1: 1 step equal",
                "  the first difference is in admission:",
                "  1: one",
                "  2: other",
                "  because of a limit",
            ],
        ),
        (
            Bisection("1", "2", "3", DIFFERENCE, 0, ["1", "3", "2"]),
            [
                "replayed by 1, 3, 2",
                "3 is the first that decides otherwise than 1: 0 steps equal",
                "  the first difference is in admission:",
                "  1: one",
                "  3: other",
                "  because of a limit",
                "2 still decides as 1 does",
            ],
        ),
    ],
)
def test_the_result_in_words(result: Bisection, lines: list[str]) -> None:
    assert as_text(result).splitlines() == lines
    assert json.loads(as_json(result)) == json.loads(msgspec.json.encode(result))


def test_versions_are_those_that_are_installed(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.1", "0.10.1rc1", "0.11.0", "other"):
        (tmp_path / f"vllm-{version}").mkdir()
        (tmp_path / f"vllm-{version}" / "python").touch()
    template = f"{tmp_path}/vllm-{{version}}/python"
    (tmp_path / "vllm-0.9.5").mkdir()  # without a Python
    assert installed_versions(template, "0.9.0..0.10.0") == ["0.9.0", "0.10.0"]
    assert installed_versions(template, "0.9.0..0.10.1") == [
        "0.9.0",
        "0.10.0",
        "0.10.1rc1",
        "0.10.1",
    ]
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / f"{version}-env").mkdir()
        (tmp_path / f"{version}-env" / "python").touch()
    behind = f"{tmp_path}/{{version}}-env/python"
    assert installed_versions(behind, "0.9.0..0.10.1") == ["0.9.0", "0.10.0"]
    for python, versions, error in [
        (f"{tmp_path}/python", "0.9.0..0.11.0", "in the place of the version"),
        ("", "0.9.0..0.11.0", "in the place of the version"),
        (template, "0.9.0", "no range"),
        (template, "..0.9.0", "no range"),
        (template, "0.9.0..", "no range"),
        (template, "0.9.0..0.9.0", "1 version from 0.9.0 to 0.9.0"),
        (template, "0.11.0..0.9.0", "0 versions"),
        (template, "0.12.0..0.13.0", "0 versions"),
    ]:
        with pytest.raises(DriverError, match=error):
            installed_versions(python, versions)
