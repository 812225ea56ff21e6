"""The types of the installed package, as a user's mypy sees them."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.installing import ROOT, Environment

MISTAKE = 'misspelled: int = next(iter(seqtop.open("run.seqtop"))).stats.num_used_block\n'
LONGEST = 300.0
"""Seconds for mypy, which reads all modules that the examples use."""


@pytest.mark.release("takes half a minute of CPU")
def test_the_examples_of_the_api_are_strictly_typed(inspector: Environment, tmp_path: Path) -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    examples = "".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert examples.count("seqtop.open") >= 2
    (tmp_path / "mine.py").write_text(f"{examples}\n{MISTAKE}", encoding="utf-8")
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"))
    python = ("--python-executable", str(inspector.bin / "python"))
    done = run(*mypy, *python, "mine.py", cwd=tmp_path, timeout=LONGEST)
    (error, total) = done.stdout.strip().splitlines()
    assert '"StepStats" has no attribute "num_used_block"' in error, "only the mistake is one"
    assert total.startswith("Found 1 error")
