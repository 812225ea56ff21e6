"""One selection and one moment on all screens."""

from seqtop.tui.app import SeqtopApp
from tests.support.piloting import SCREENS, play, screen


def test_selection_pause_and_moment_carry_over(app: SeqtopApp) -> None:
    with play(app, (100, 24)) as pilot:
        pilot.press("down", "down", "space")
        chosen = app.ui.cursor.seq_id
        for key in range(len(SCREENS), 0, -1):
            pilot.press(str(key))
            assert "‖ PAUSED" in screen(app)
            assert app.ui.cursor.seq_id == chosen
