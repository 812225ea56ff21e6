"""The declarations of rules: each has a mutant and is documented."""

import re
from pathlib import Path

import pytest

from seqtop.checks.rules import RULES, rule
from tests.support.mutants import MUTANTS


def test_every_rule_has_a_mutant() -> None:
    # Messages that cannot be read are not events: tests/checks/test_report.py has them.
    assert {name for name, _ in MUTANTS} | {"unreadable"} == set(RULES)


def test_the_document_lists_every_rule() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checks.md").read_text()
    rows = re.compile(r"^\| `([a-z-]+)` \| (.+) \|$", re.MULTILINE)
    errors, warnings = text.split("## Warnings")
    for section, severity in ((errors, "error"), (warnings, "warning")):
        assert dict(rows.findall(section)) == {
            name: rule.violation for name, rule in RULES.items() if rule.severity == severity
        }


def test_a_name_is_given_to_one_rule_only() -> None:
    with pytest.raises(ValueError, match="'budget' is declared twice"):
        rule("budget", "it is there already")
