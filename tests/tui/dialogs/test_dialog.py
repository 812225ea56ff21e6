"""A dialog is closed by one key press, also when the key is pressed twice."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.dialog import Dialog
from tests.support.piloting import burst, play, until


@pytest.mark.parametrize("keys", ["b17", "sq", ":12", "c"])
def test_a_second_enter_finds_nobody_to_answer(app: SeqtopApp, keys: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        burst(app, keys)
        await until(pilot, lambda: isinstance(app.screen, Dialog) and app.focused is not None)
        await pilot.pause()
        burst(app, "\r")
        burst(app, "\r")
        await until(pilot, lambda: not isinstance(app.screen, Dialog))
        await pilot.pause()
        assert app.is_running

    play(app, act, (80, 24))
