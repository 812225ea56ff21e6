"""The dialog that predicts a recorded run with other settings."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

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

        async def act(pilot: Pilot[int]) -> None:
            await pilot.press("I")
            await pilot.press(*"blocks=3", "enter")
            await until(pilot, lambda: "No prediction: no setting 'blocks'" in screen(app))
            await pilot.press(*["backspace"] * 8)
            await pilot.press(*"num_gpu_blocks=+60%", "enter")
            await until(pilot, lambda: "num_gpu_blocks: 40 → 64" in screen(app))
            assert "recorded" in screen(app)
            assert "unchanged settings: " in screen(app)
            await pilot.press("down", "pagedown", "pagedown", "pagedown")
            await until(pilot, lambda: "times: at the recorded speed" in screen(app))
            await pilot.press("escape")
            await pilot.pause()
            assert "What if" not in screen(app)

        play(app, act, (120, 40))


def test_an_engine_has_to_be_recorded_first() -> None:
    app = SeqtopApp(ScriptedSource(), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("I")
        await pilot.pause()
        assert notices(app) == ["This works with a recording: R writes one."]

    play(app, act)
