"""`seqtop replay`: arguments and files that are refused."""

from pathlib import Path

import pytest

from seqtop.cli import main


@pytest.mark.parametrize("argument", ["0", "-1", "inf", "nan", "soon"])
def test_speeds_that_are_not_positive_are_refused(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["replay", "run.seqtop", "--speed", argument])
    assert "is not a positive number" in capsys.readouterr().err


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["replay", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
