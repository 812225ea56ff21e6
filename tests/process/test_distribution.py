"""The other `seqtop` of PyPI beside ours."""

from pathlib import Path

import pytest

from seqtop.process.distribution import NAME, install_command
from tests.support.commands import assert_one_sentence, run
from tests.support.installing import Environment, build_wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    return Environment(tmp_path_factory.mktemp("environment"), wheel)


def test_the_advice_names_the_distribution() -> None:
    assert NAME == "seqtop-llm"
    assert install_command("web") == "pip install 'seqtop-llm[web]'"


@pytest.mark.parametrize("suffix", ["0.2.dist-info", "0.2-py3.11.egg-info"])
def test_the_other_seqtop_is_named(environment: Environment, suffix: str) -> None:
    command = str(environment.bin / "seqtop")
    assert run(command, "--version").returncode == 0
    other = Path(environment.packages, f"seqtop-{suffix}")
    other.mkdir()
    try:
        assert_one_sentence(run(command, "--version"), 1, "another program", "pip uninstall seqtop")
        assert run(str(environment.bin / "python"), "-m", "seqtop", "--version").returncode == 0
    finally:
        other.rmdir()
