"""The inspector must start on a machine that has never heard of torch."""

import subprocess
import sys

import pytest

INSPECTOR = (
    "seqtop",
    "seqtop.cli",
    "seqtop.sequence",
    "seqtop.wire",
    "seqtop.state",
    "seqtop.session",
    "seqtop.demo",
    "seqtop.export.document",
    "seqtop.tui.app",
)


@pytest.mark.parametrize("forbidden", ["torch", "transformers", "numpy"])
def test_inspector_does_not_load(forbidden: str) -> None:
    program = f"import sys, {', '.join(INSPECTOR)}; sys.exit({forbidden!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
