"""`seqtop replay`: arguments and files that are refused."""

import sys
from pathlib import Path

import pytest

from seqtop.cli import main
from tests.support.terminal import Terminal


@pytest.mark.parametrize("argument", ["0", "-1", "inf", "nan", "soon"])
def test_speeds_that_are_not_positive_are_refused(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["replay", "run.seqtop", "--speed", argument])
    assert "is not a positive number" in capsys.readouterr().err


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["replay", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_app_fills_the_terminal_also_with_its_output_in_a_pipe(recording: str) -> None:
    command = f"unset COLUMNS LINES; {sys.executable} -m seqtop replay {recording} | cat"
    app = Terminal("bash", "-c", command, size=(100, 30))
    try:
        app.wait_until(lambda: "Request" in app.text and "q Quit" in app.text.splitlines()[29])
        app.press("6")
        app.wait_until(lambda: "no draft tokens" in app.text)
        assert "q Quit" in app.text.splitlines()[29], "after the first frame, too"
        app.press("q")
        app.wait_until(lambda: app.process.poll() is not None)
    finally:
        app.close()
