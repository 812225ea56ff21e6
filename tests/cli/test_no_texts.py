"""Analyses that commands print hold no text of prompts and outputs, unless it is asked for."""

from pathlib import Path

import pytest

from seqtop.explain.outliers import find_outliers
from seqtop.history import FileStore
from seqtop.state.slo import Slo
from seqtop.wire.messages import Event, RequestArrived, Step
from tests.support.commands import run_here
from tests.support.greedy_runs import record_run

PROMPTS = "xylophone", "bassoon"
OUTPUTS = "marimba", "zither"
ANALYSES = (
    ("explain", "--slow"),
    ("explain", "--cache"),
    ("explain", "--who"),
    ("check",),
    ("whatif", "--set", "num_gpu_blocks=+50%"),
    ("test",),
)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two recordings, in which the slow requests have other texts than the others."""
    folder = tmp_path_factory.mktemp("texts")
    path, other = folder / "run.seqtop", folder / "other.seqtop"
    record_run(path)
    with FileStore(path) as recording:
        slow = {request.request_id for request in find_outliers(recording, Slo()).slow}
    names: dict[int, str] = {}

    def add_texts(event: Event) -> Event:
        if isinstance(event, RequestArrived):
            event.prompt = PROMPTS[event.request_id in slow] * 100
            names[event.seq_ids[0]] = event.request_id
        elif isinstance(event, Step):
            for update in event.sequences:
                if (name := names.pop(update.seq_id, None)) is not None:
                    update.text_delta = OUTPUTS[name in slow] * 100
        return event

    record_run(path, add_texts)
    record_run(other, add_texts, num_gpu_blocks=44)
    return str(path), str(other)


def assert_no_text(shown: str) -> None:
    assert len(shown) > 20
    assert [text for text in (*PROMPTS, *OUTPUTS) if text[:6] in shown] == []


@pytest.mark.parametrize("options", ANALYSES, ids=" ".join)
def test_analysis_of_a_recording(
    recordings: tuple[str, str], options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *others = options
    for form in ([], ["--json"]):
        done = run_here(capsys, command, recordings[0], *others, *form)
        assert done.returncode in (0, 1), done.stderr  # the lengths of the texts are findings
        assert_no_text(done.stdout)


def test_analysis_of_a_request_and_of_two_recordings(
    recordings: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    for options in (
        ("explain", recordings[0], "req-20"),
        ("explain", recordings[0], "req-20", "--who", "--json"),
        ("diff", *recordings),
        ("diff", *recordings, "--json"),
        ("report", *recordings, "-o", str(page)),
    ):
        done = run_here(capsys, *options)
        assert done.returncode in (0, 1), done.stderr
        assert_no_text(page.read_text() if options[0] == "report" else done.stdout)


def test_texts_are_shown_if_they_are_asked_for(
    recordings: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    run_here(capsys, "report", recordings[0], "--with-text", "-o", str(page))
    assert PROMPTS[1] in page.read_text()
    done = run_here(capsys, "explain", recordings[0], "--cache", "--with-text", "--json")
    assert '"token_id": null' not in done.stdout
    assert run_here(capsys, "explain", recordings[0], "--slow", "--with-text").returncode == 2
