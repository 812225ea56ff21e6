"""The report of a folder of recordings."""

import re
from pathlib import Path

import pytest

from seqtop.wire.messages import EngineInfo, Event
from tests.support.commands import assert_one_sentence, run_here
from tests.support.greedy_runs import NUM_REQUESTS, record_run


def named(name: str, event: Event) -> Event:
    if isinstance(event, EngineInfo):
        event.engine_id = name
    return event


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    record_run(folder / "roomy.seqtop", lambda event: named("roomy", event), num_gpu_blocks=400)
    record_run(folder / "full.seqtop", lambda event: named("<b>full</b>", event), num_gpu_blocks=24)
    (folder / "broken.seqtop").write_bytes(b"no recording")
    (folder / "notes.txt").write_text("no recording, and not taken for one")
    return folder


def rows_of(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr><td>.*?</tr>", page)
    return [[re.sub(r"<.*?>", "", cell) for cell in row.split("</td>")[:-1]] for row in rows]


def test_the_recording_that_misses_most_is_first_and_named_in_the_sentence(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "page.html"
    done = run_here(capsys, "report", str(recordings), "-o", str(output), "--slo", "ttft=400ms")
    assert done.returncode == 0
    assert "1 recording could not be read as a whole" in done.stderr
    page = output.read_text()
    full, roomy, broken = rows_of(page)
    assert [row[0] for row in (full, roomy, broken)] == [
        *("full.seqtop", "roomy.seqtop", "broken.seqtop"),
    ]
    assert full[1] == "&lt;b&gt;full&lt;/b&gt;"
    assert full[4:6] == [str(NUM_REQUESTS), "0"]
    assert float(full[6].rstrip("%")) < float(roomy[6].rstrip("%"))
    assert full[-1].startswith("limited by KV blocks")
    assert "no recording" in broken[-1] or "not a" in broken[-1]
    (verdict,) = re.findall(r'<p class="verdict">(.*?)</p>', page)
    assert "of 2 recordings" in verdict
    assert "the worst is full.seqtop" in verdict


def test_without_objectives_the_longest_ttft_is_first(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "page.html"
    assert run_here(capsys, "report", str(recordings), "-o", str(output)).returncode == 0
    assert "No objectives were given" in output.read_text()
    assert rows_of(output.read_text())[0][0] == "full.seqtop"


def test_a_folder_without_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "report", str(tmp_path), "-o", str(tmp_path / "page.html"))
    assert_one_sentence(done, 2, "there is no recording (*.seqtop) in")
