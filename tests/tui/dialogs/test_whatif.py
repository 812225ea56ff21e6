"""The dialog that predicts a recorded run with other settings."""

from pathlib import Path

import pytest

from seqtop.history import FileStore
from seqtop.history.playback import Playback
from seqtop.tui.app import SeqtopApp
from tests.support.greedy_runs import record_run
from tests.support.piloting import notices, play, screen, until
from tests.support.scripted import ScriptedSource


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "run.seqtop"
    record_run(path)
    return path


def test_other_settings_are_predicted(recording: Path) -> None:
    with FileStore(recording) as store:
        app = SeqtopApp(Playback(store, str(recording), paused=True), clock=lambda: 0.0)
        with play(app, (120, 40)) as pilot:
            pilot.press("I")
            pilot.press(*"blocks=3", "enter")
            until(pilot, lambda: "No prediction: no setting 'blocks'" in screen(app))
            pilot.press(*["backspace"] * 8)
            pilot.press(*"num_gpu_blocks=+60%", "enter")
            until(pilot, lambda: "num_gpu_blocks: 40 → 64" in screen(app))
            assert "recorded" in screen(app)
            assert "unchanged settings: " in screen(app)
            pilot.press("down", "pagedown", "pagedown", "pagedown")
            until(pilot, lambda: "times: at the recorded speed" in screen(app))
            pilot.press("escape")
            assert "What if" not in screen(app)


def test_an_engine_has_to_be_recorded_first() -> None:
    app = SeqtopApp(ScriptedSource(), clock=lambda: 0.0)
    with play(app) as pilot:
        pilot.press("I")
        assert notices(app) == ["This works with a recording: R writes one."]
