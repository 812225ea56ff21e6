"""One selection and one moment on all screens."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from tests.support.piloting import SCREENS, play, screen


def test_selection_pause_and_moment_carry_over(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("down", "down", "space")
        chosen = app.ui.cursor.seq_id
        for key in range(len(SCREENS), 0, -1):
            await pilot.press(str(key))
            await pilot.pause()
            assert "‖ PAUSED" in screen(app)
            assert app.ui.cursor.seq_id == chosen

    play(app, act, (100, 24))
