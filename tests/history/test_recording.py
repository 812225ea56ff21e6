"""`seqtop.open`: the steps, messages and states of a recording, for programs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import seqtop
from seqtop.history import FileStore, FileWriter
from seqtop.state import EngineState
from seqtop.wire import parsing
from seqtop.wire.messages import Step
from tests.support.public_names import API
from tests.support.recordings import append, assert_same, encoded
from tests.support.stored_run import write_run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording with a gap and a restart."""
    path = tmp_path / "run.seqtop"
    write_run(path)
    return path


def test_the_documented_programs_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(path.parent)
    programs = re.findall(r"^```python\n(.*?)^```$", API.read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    names: dict[str, object] = {}
    for program in programs:
        exec(program, names)
        assert "req-5" in capsys.readouterr().out


def test_states_are_those_of_the_timeline(path: Path) -> None:
    with seqtop.open(path) as recording, FileStore(path) as timeline:
        first = recording.states()
        for position, payload in timeline.payloads(timeline.first, timeline.last):
            event = None if payload is None else parsing.event(payload)
            if isinstance(event, Step):
                step, state = next(first)
                assert step == event
                assert_same(state, timeline.at(position))
        assert next(first, None) is None
        assert [step.step for step in recording] == [step.step for step, _ in recording.states()]


def test_gaps_are_among_the_messages(path: Path) -> None:
    with seqtop.open(path) as recording, FileStore(path) as timeline:
        events = list(recording.events())
        gaps = [event for event in events if isinstance(event, seqtop.Gap)]
        assert [(gap.restarted, gap.num_missed) for gap in gaps] == [(False, 1), (True, 0)]
        assert recording.gaps == tuple(gaps)
        assert len(events) == timeline.last - timeline.first
        assert [events[gap.position - 1] for gap in gaps] == gaps


def test_a_file_cut_short_is_read_up_to_its_loss(tmp_path: Path) -> None:
    path, script = tmp_path / "cut", encoded(8, 400)
    with FileWriter(path) as writer:
        append(writer, script, EngineState())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with seqtop.open(path) as recording:
        steps = [event for event in map(parsing.event, script) if isinstance(event, Step)]
        read = list(recording)
        assert 0 < len(read) < len(steps)
        assert read == steps[: len(read)]
        assert "was cut short" in str(recording.damage)


@pytest.mark.parametrize(
    ("content", "error"), [(None, "cannot be opened"), (b"", "is empty"), (b"PK", "not a seqtop")]
)
def test_a_file_without_a_recording_is_refused(
    tmp_path: Path, content: bytes | None, error: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(seqtop.RecordingError, match=error):
        seqtop.open(path)


def test_a_closed_recording_cannot_be_read(path: Path) -> None:
    recording = seqtop.open(path)
    recording.close()
    with pytest.raises(seqtop.RecordingError):
        next(iter(recording))


def test_import_seqtop_loads_nothing_else() -> None:
    program = "import sys, seqtop; print(*[name for name in sys.modules if 'seqtop.' in name])"
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == []
