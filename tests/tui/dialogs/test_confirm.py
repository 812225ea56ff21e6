"""Aborting a request is confirmed."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.confirm import Confirm
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import notices, play, screen, until
from tests.support.scripted import ScriptedSource


def test_abort(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("x")
        assert isinstance(app.screen, Confirm)
        assert "Abort req-1?" in screen(app)
        await pilot.press("n")
        assert isinstance(app.screen, SequencesScreen)
        await pilot.press("x")
        await pilot.press("escape")
        assert not source.aborted
        await pilot.press("x")
        await pilot.press("y")
        await until(pilot, lambda: source.aborted == ["req-1"])
        await until(pilot, lambda: "Aborted req-1." in notices(app))
        await pilot.press("G", "x")
        assert any("has already finished" in notice for notice in notices(app))

    play(app, act)
