"""Recording from within the app: a key starts and ends it, and what is written is whole."""

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from seqtop.cli.main import main
from seqtop.history import FileStore
from seqtop.history.copying import save
from seqtop.live.playback import Playback
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import notices, play, screen, selected, until
from tests.support.recordings import assert_same
from tests.support.scripted import Script, ScriptedSource, scene


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> Path:
    (path,) = folder.glob("seqtop-*.seqtop")
    return path


def make() -> tuple[Script, ScriptedSource, SeqtopApp]:
    source = ScriptedSource()
    script = scene(source, hostile="?")
    return script, source, SeqtopApp(source, clock=lambda: 0.0)


def test_a_key_starts_and_ends_it(folder: Path) -> None:
    script, source, app = make()
    with play(app, (120, 30)) as pilot:
        pilot.press("R", "r")
        until(pilot, lambda: bool(notices(app)))
        path = written(folder)
        assert notices(app) == [f"Recording to {path}."]
        pilot.draw()
        assert "● REC" in screen(app)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for _ in range(5):
            script.step()
        app.draw()
        pilot.press("R")
        until(pilot, lambda: "".join(notices(app)).startswith(f"Recorded 5 steps to {path} ("))
        until(pilot, lambda: "● REC" not in screen(app))
        script.step()
    with FileStore(written(folder)) as recording:
        assert recording.index.num_steps == 5
        assert recording.at(recording.last).step == source.state.step - 1


def test_leaving_the_app_ends_it_properly(folder: Path) -> None:
    script, source, app = make()
    before = [*source.listeners]
    with play(app) as pilot:
        pilot.press("R", "r")
        until(pilot, lambda: bool(notices(app)))
        script.step()
        pilot.press("q")
    path = written(folder)
    assert app.exit_message.startswith(f"Recorded 1 step to {path} (")
    assert source.listeners == before
    with FileStore(path) as recording:
        assert recording.at(recording.last).sequences == source.state.sequences


def test_a_replay_is_not_recorded(folder: Path) -> None:
    script, _, app = make()
    with play(app) as pilot:
        pilot.press("R", "r")
        until(pilot, lambda: bool(notices(app)))
        script.step()
    with FileStore(written(folder)) as recording:
        replayed = SeqtopApp(Playback(recording, "run.seqtop", paused=True))
        with play(replayed) as pilot:
            pilot.press("R")
            until(pilot, lambda: bool(notices(replayed)))
            assert notices(replayed) == ["Not recorded: this is a recording already."]
            pilot.press("F")
            assert notices(replayed)[0].startswith("There is one engine:")
            replayed.clear_notifications()
            pilot.pause()
            assert "space Resume" in screen(replayed)
    assert len(list(folder.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    monkeypatch.setattr(Path, "cwd", lambda: gone)
    _, _, app = make()
    with play(app) as pilot:
        pilot.press("R", "r")
        until(pilot, lambda: bool(notices(app)))
        assert notices(app)[0].startswith("Not recorded: ")
        assert "cannot be created: No such file or directory" in notices(app)[0]
        assert "REC" not in screen(app)


def test_a_full_disk_ends_the_recording_and_not_the_app(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, _, app = make()
    write = os.write

    def write_little(file: int, data: bytes) -> int:
        """As on a disk with room for the beginning of the file."""
        if len(data) > 1_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr("seqtop.history.file_writer.os.write", write_little)
    with play(app, (120, 30)) as pilot:
        pilot.press("R", "r")
        until(pilot, lambda: bool(notices(app)))
        script.step()
        pilot.draw()
        assert "✗ REC ENDED" in screen(app)
        pilot.press("R")
        until(pilot, lambda: "No space left on device" in "".join(notices(app)))
        until(pilot, lambda: "REC ENDED" not in screen(app))


def test_the_past_is_saved_and_shared(folder: Path) -> None:
    _, source, app = make()
    with play(app, (120, 30)) as pilot:
        pilot.press("R")
        assert "save the past: 41 steps" in screen(app)
        pilot.press("escape", "R", "s")
        until(pilot, lambda: "Saved the past" in "".join(notices(app)))
        path = written(folder)
        assert notices(app)[0].startswith(f"Saved the past, 41 steps, to {path} (")
        with FileStore(path) as recording:
            assert_same(recording.at(recording.last), source.state)
        path.unlink()
        pilot.press("left", "left", "down")
        step, chosen = app.ui.state.step, selected(app)
        pilot.press("S")
        until(pilot, lambda: "Shared as" in "".join(notices(app)))
        path = written(folder)
        command = f"seqtop {path.name} --at {step} --select {chosen}"
        until(pilot, lambda: app.clipboard == command)
        card = path.with_suffix(".txt").read_text()
        assert card.endswith(f"\n\n{command}\n")
        assert f"\n{chosen}: " in card
        assert chosen in path.with_suffix(".svg").read_text()
        pilot.press("q")
    assert app.exit_message == f"Shared: {command}"


def test_a_save_that_takes_long_is_announced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, write = threading.Event(), os.write

    def write_late(file: int, data: bytes) -> int:
        disk.wait()
        return write(file, data)

    monkeypatch.setattr("seqtop.history.file_writer.os.write", write_late)
    _, _, app = make()
    with play(app, (120, 30)) as pilot:
        pilot.press("S")
        until(pilot, lambda: "Saving the past, 41 steps …" in screen(app))
        disk.set()
        until(pilot, lambda: "Shared as" in screen(app))
        assert len(notices(app)) == 1


def test_a_shared_moment_of_a_recording_names_its_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, source, _ = make()
    save(source.history, folder / "a run.seqtop")
    shown: list[tuple[str, int, bool]] = []

    def run(app: SeqtopApp) -> int:
        with play(app, (120, 30)) as pilot:
            until(pilot, lambda: selected(app) == "req-4")
            shown.append((selected(app), app.ui.state.step, app.ui.paused))
            pilot.press("S")
            until(pilot, lambda: "Shared as" in "".join(notices(app)))
            assert app.shared == ["seqtop 'a run.seqtop' --at 30 --select req-4"]
        return 0

    monkeypatch.setattr(SeqtopApp, "run", run)
    monkeypatch.setattr("seqtop.cli.run_app.has_terminal", lambda: True)
    assert main(["a run.seqtop", "--at", "30", "--select", "req-4"]) == 0
    assert shown == [("req-4", 30, True)]
    assert len(list(folder.glob("*.seqtop"))) == 1
