"""The versions that are declared are those that were tried."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from seqtop.process.distribution import NAME

ROOT = Path(__file__).parents[1]
USERS_EXTRAS = ("engine", "export", "web")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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
    extras = project()["optional-dependencies"]
    for line in (
        *project()["dependencies"],
        *(extra for key in USERS_EXTRAS for extra in extras[key]),
    ):
        requirement = Requirement(line)
        (floor,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
        yield canonicalize_name(requirement.name), Version(floor)


def test_the_lowest_versions_are_those_that_were_tried() -> None:
    assert dict(floors()) == pins("constraints-lowest.txt")


def test_the_versions_of_the_tests_are_allowed() -> None:
    tried = pins("constraints.txt")
    extras = project()["optional-dependencies"]
    for line in (*project()["dependencies"], *(extra for key in extras for extra in extras[key])):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        assert name == NAME or tried[name] in requirement.specifier, name
