"""`seqtop report` as a user runs it."""

import stat
from pathlib import Path

import pytest

from seqtop.cli.main import main
from tests.support.commands import SEQTOP, assert_one_sentence, run


def test_a_page_goes_to_a_file_of_its_owner_s(recording: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    command = (*SEQTOP, "report", recording, "-o", str(path))
    done = run(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"seqtop: wrote {path}\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text(encoding="utf-8").endswith("</body></html>\n")
    assert_one_sentence(run(*command), 1, f"{path} exists already; --force replaces it")
    assert main(["report", recording, recording, "-o", str(path), "--force"]) == 0
    assert "run.seqtop and run.seqtop" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "output", "sentence", "status"),
    [
        ("/nonexistent", "report.html", "/nonexistent cannot be opened", 2),
        (None, "no/such/directory.html", "cannot be written: No such file or directory", 1),
    ],
)
def test_files_that_cannot_be_read_or_written_are_refused(
    source: str | None,
    output: str,
    sentence: str,
    status: int,
    recording: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["report", source or recording, "-o", str(tmp_path / output)]) == status
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
