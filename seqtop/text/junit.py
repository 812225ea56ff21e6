"""Reports as JUnit XML, which systems for continuous integration show."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

import msgspec

from seqtop.text.sanitize import safe_line


class Case(msgspec.Struct, kw_only=True):
    """A test case, which has passed without a failure, an error, and a reason to skip it."""

    classname: str
    name: str
    failure: str | None = None
    """The sentence that says what has failed; `None` if nothing has."""
    failure_type: str = ""
    details: str = ""
    """Lines below that sentence."""
    error: str | None = None
    """The sentence that says why it could not be tested; `None` if it was."""
    skipped: str | None = None
    """The sentence that says why it was skipped; `None` if it was not."""


class Suite(msgspec.Struct):
    """A test suite."""

    name: str
    cases: list[Case]


def junit(suite: Suite) -> str:
    """Returns a suite as JUnit XML."""
    return _document(_element(suite))


def junit_of_all(suites: Sequence[Suite]) -> str:
    """Returns several suites as one document of JUnit XML."""
    root = ET.Element("testsuites")
    root.extend(map(_element, suites))
    return _document(root)


def _element(suite: Suite) -> ET.Element:
    cases = suite.cases
    element = ET.Element(
        "testsuite",
        name=suite.name,
        tests=str(len(cases)),
        failures=str(sum(case.failure is not None for case in cases)),
        errors=str(sum(case.error is not None for case in cases)),
        skipped=str(sum(case.skipped is not None for case in cases)),
    )
    element.extend(map(_case, cases))
    return element


def _case(case: Case) -> ET.Element:
    element = ET.Element("testcase", classname=safe_line(case.classname), name=safe_line(case.name))
    if case.error is not None:
        ET.SubElement(element, "error", message=safe_line(case.error))
    if case.failure is not None:
        message = safe_line(case.failure)
        failure = ET.SubElement(element, "failure", message=message, type=case.failure_type)
        failure.text = case.details
    if case.skipped is not None:
        ET.SubElement(element, "skipped", message=safe_line(case.skipped))
    return element


def _document(root: ET.Element) -> str:
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document.decode()
