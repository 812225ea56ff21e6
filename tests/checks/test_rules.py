"""The declarations of rules: each has a mutant and is documented."""

import re
from pathlib import Path

import pytest

from seqtop.checks import RULES
from seqtop.checks.rules import rule
from tests.support.mutants import MUTANTS


def test_every_rule_has_a_mutant() -> None:
    assert {name for name, _ in MUTANTS} == set(RULES)


def test_the_document_lists_every_rule() -> None:
    text = (Path(__file__).parents[2] / "docs" / "checks.md").read_text()
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", text, re.MULTILINE)) == RULES


def test_a_name_is_given_to_one_rule_only() -> None:
    with pytest.raises(ValueError, match="'budget' is declared twice"):
        rule("budget", "it is there already")
