"""Installations of the wheels, one each for all tests of a process."""

from pathlib import Path

import pytest

from tests.support.installing import ROOT, Environment, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def engine_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("engine-wheel"), ROOT / "engine_stub")


@pytest.fixture(scope="session")
def inspector(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """An environment made by `pip install seqtop-llm`: no torch."""
    return Environment(tmp_path_factory.mktemp("inspector"), wheel)


@pytest.fixture(scope="session")
def with_engine(
    tmp_path_factory: pytest.TempPathFactory,
    wheel: Path,
    engine_wheel: Path,
    with_whatif: Environment,
) -> Environment:
    """An environment made by `pip install 'seqtop-llm[engine]'`."""
    folder, wheels = tmp_path_factory.mktemp("engine"), (wheel, engine_wheel)
    return Environment(folder, *wheels, extra="engine", like=with_whatif)


@pytest.fixture(scope="session")
def with_whatif(
    tmp_path_factory: pytest.TempPathFactory,
    wheel: Path,
    engine_wheel: Path,
    inspector: Environment,
) -> Environment:
    """An environment made by `pip install 'seqtop-llm[whatif]'`: the scheduler, and no torch."""
    folder, wheels = tmp_path_factory.mktemp("whatif"), (wheel, engine_wheel)
    return Environment(folder, *wheels, extra="whatif", like=inspector)
