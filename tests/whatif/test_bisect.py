"""The first version that decides otherwise."""

from pathlib import Path

import pytest

from seqtop.diff.run import RunDecisions
from seqtop.whatif.bisect import find_change, installed_versions
from seqtop.whatif.driver import DriverError
from tests.support.diff_runs import as_run, payloads

VERSIONS = [f"0.{minor}.0" for minor in range(8, 24)]


@pytest.fixture(scope="module")
def runs() -> tuple[RunDecisions, RunDecisions]:
    return as_run(payloads()), as_run(payloads(max_num_seqs=3))


@pytest.mark.parametrize("changed", [1, 2, 7, 14, 15, None])
def test_the_first_changed_version_is_found(
    runs: tuple[RunDecisions, RunDecisions], changed: int | None
) -> None:
    def replay(version: str) -> RunDecisions:
        return runs[changed is not None and VERSIONS.index(version) >= changed]

    result = find_change(VERSIONS, replay)
    assert result.changed == (None if changed is None else VERSIONS[changed])
    assert result.last_equal == VERSIONS[-1 if changed is None else changed - 1]
    assert (result.difference is None) is (changed is None)
    assert len(set(result.tried)) == len(result.tried) <= 6


def test_versions_are_those_that_are_installed(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.1", "0.10.1rc1", "0.11.0", "other"):
        (tmp_path / f"vllm-{version}").mkdir()
        (tmp_path / f"vllm-{version}" / "python").touch()
    template = f"{tmp_path}/vllm-{{version}}/python"
    assert installed_versions(template, "0.9.0..0.10.1") == [
        "0.9.0",
        "0.10.0",
        "0.10.1rc1",
        "0.10.1",
    ]
    for python, versions, error in [
        (f"{tmp_path}/python", "0.9.0..0.11.0", "in the place of the version"),
        (template, "0.9.0", "no range"),
        (template, "0.12.0..0.13.0", "0 versions"),
    ]:
        with pytest.raises(DriverError, match=error):
            installed_versions(python, versions)
