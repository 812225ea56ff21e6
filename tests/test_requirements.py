"""The versions that are declared are those that were tried."""

import tomllib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from seqtop import __version__
from seqtop.process.distribution import ENGINE, NAME

ROOT = Path(__file__).parents[1]
DEVELOPERS_EXTRAS = {"dev", "test"}


def project(folder: str = ".") -> dict[str, Any]:
    path = ROOT / folder / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


PROJECTS = (project(), project("engine_stub"))


def requirements(*, without: Container[str] = ()) -> Iterator[Requirement]:
    """The packages that both distributions require, beside each other."""
    for each in PROJECTS:
        extras = each["optional-dependencies"]
        lines = [line for key in extras if key not in without for line in extras[key]]
        for line in (*each["dependencies"], *lines):
            requirement = Requirement(line)
            if canonicalize_name(requirement.name) not in (NAME, ENGINE):
                yield requirement


def pins(name: str) -> dict[str, Version]:
    """The versions in a file of constraints."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {
        canonicalize_name(requirement.name): Version(str(requirement.specifier)[2:])
        for requirement in found
    }


def floors() -> Iterator[tuple[str, Version]]:
    """The lowest version of each package that users install."""
    for requirement in requirements(without=DEVELOPERS_EXTRAS):
        (floor,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
        yield canonicalize_name(requirement.name), Version(floor)


def test_the_lowest_versions_are_those_that_were_tried() -> None:
    assert dict(floors()) == pins("constraints-lowest.txt")


def test_the_versions_of_the_tests_are_allowed() -> None:
    tried = pins("constraints.txt")
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert tried[name] in requirement.specifier, name


def test_both_distributions_are_released_together() -> None:
    """They share messages: each requires the other's version."""
    inspector, engine = PROJECTS
    assert (inspector["name"], engine["name"]) == (NAME, ENGINE)
    assert {each["version"] for each in PROJECTS} == {__version__}
    assert f"{NAME}=={__version__}" in engine["dependencies"]
    extras = inspector["optional-dependencies"]
    assert extras["whatif"] == [f"{ENGINE}=={__version__}"]
    assert extras["engine"] == [f"{ENGINE}[torch]=={__version__}"]
    for field in ("license", "authors", "requires-python"):
        assert inspector[field] == engine[field], field
