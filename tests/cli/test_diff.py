"""`seqtop diff`."""

import json
from pathlib import Path

import pytest

from seqtop.cli.main import main
from tests.support.broken_recordings import RIGHT, record
from tests.support.events import arrival, engine_info, step


@pytest.fixture
def a(tmp_path: Path) -> str:
    path = tmp_path / "a.seqtop"
    record(path, RIGHT)
    return str(path)


def test_equal_recordings(a: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", a, a]) == 0
    assert "all 6 steps have the same decisions" in capsys.readouterr().out


def test_recordings_that_differ(a: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = str(tmp_path / "b.seqtop")
    record(Path(b), (engine_info(max_num_seqs=4), *RIGHT[1:-1], step(5), step(6)))
    assert main(["diff", a, b]) == 1
    said = capsys.readouterr().out
    assert "setting max_num_seqs: A 8, B 4\n" in said
    assert "A, step none: the run has 6 steps\n  B, step 6: the run has 7 steps" in said
    assert main(["diff", a, b, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["a"], document["b"], document["differs"]) == (a, b, True)
    assert document["settings"] == [{"name": "max_num_seqs", "a": 8, "b": 4}]
    assert [difference["kind"] for difference in document["differences"]] == ["length"]
    assert document["num_equal_steps"] == document["num_matching_steps"] == 6
    steps = next(figure for figure in document["figures"] if figure["name"] == "steps")
    assert (steps["a"], steps["b"]) == (6, 7)


def test_kinds_of_differences_are_ignored(a: str, tmp_path: Path) -> None:
    b = str(tmp_path / "b.seqtop")
    record(Path(b), (*RIGHT[:1], arrival(9), *RIGHT[1:]))
    assert main(["diff", a, b]) == 1
    assert main(["diff", a, b, "--ignore", "tokens", "--ignore", "arrivals"]) == 0


def test_recording_that_cannot_be_read(a: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", a, "/nonexistent"]) == 2
    assert "/nonexistent cannot be opened" in capsys.readouterr().err
