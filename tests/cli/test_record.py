"""`seqtop record`."""

import json
from pathlib import Path

from tests.support.commands import SEQTOP, assert_one_sentence, run


def test_record_then_check_the_recording(engine: str, tmp_path: Path) -> None:
    file = str(tmp_path / "run.seqtop")
    assert run(*SEQTOP, "record", engine, "-o", file, "--duration", "2").returncode == 0
    done = run(*SEQTOP, "check", file, "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["num_steps"] > 0
    assert report["num_gaps"] == 0
    again = run(*SEQTOP, "record", engine, "-o", file, "--duration", "2")
    assert_one_sentence(again, 1, f"{file} exists already; --force replaces it")
    shown = run(*SEQTOP, "show", file, "--json")
    assert json.loads(shown.stdout)["link"]["state"] == "replay"
    assert "typed-1" in run(*SEQTOP, "show", file).stdout
