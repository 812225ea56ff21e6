"""Messages on standard error."""

import pytest

from seqtop.cli.messages import fail, warn


def test_a_message_is_one_line_without_controls(capsys: pytest.CaptureFixture[str]) -> None:
    warn("two\nlines\x1b[2J")
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("seqtop: two")
    assert "\x1b" not in line


def test_a_failure_returns_its_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("no engine") == 1
    assert fail("wrong usage", status=2) == 2
    assert capsys.readouterr().err == "seqtop: no engine\nseqtop: wrong usage\n"
