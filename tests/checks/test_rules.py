"""The declarations of rules: each has a mutant and is documented."""

import re
from pathlib import Path

import pytest

from seqtop.checks.message_rules import PROTOCOL_RULES
from seqtop.checks.rules import RULES, rule
from tests.release.injected_bugs import BUGS
from tests.support.mutants import MUTANTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "checks.md"


def test_every_rule_has_a_mutant() -> None:
    # Messages that cannot be read are not events, and neither are frames and snapshots:
    # tests/checks/test_protocol.py has them.
    assert {name for name, _ in MUTANTS} | {"unreadable"} | PROTOCOL_RULES == set(RULES)


def test_the_document_lists_every_rule() -> None:
    text = DOCUMENT.read_text().partition("## Injected bugs")[0]
    rows = re.compile(r"^\| `([a-z-]+)` \| (.+) \|$", re.MULTILINE)
    errors, warnings = text.split("## Warnings")
    for section, severity in ((errors, "error"), (warnings, "warning")):
        assert dict(rows.findall(section)) == {
            name: rule.violation for name, rule in RULES.items() if rule.severity == severity
        }


def test_a_name_is_given_to_one_rule_only() -> None:
    with pytest.raises(ValueError, match="'budget' is declared twice"):
        rule("budget", "it is there already")


def test_the_document_lists_every_injected_bug() -> None:
    section = DOCUMENT.read_text().partition("## Injected bugs")[2]
    rows = re.findall(r"^\| (.+?) \| (?:`([a-z-]+)`|missed)", section, re.MULTILINE)
    assert rows == [(bug.name, bug.rule) for bug in BUGS]
