"""The dialog with the differences between two moments."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.comparison import ComparisonDialog
from tests.support.piloting import play, screen


def test_two_moments_of_a_running_engine(live: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("A", *["comma"] * 12, "B")
        await pilot.pause()
        assert isinstance(live.screen, ComparisonDialog)
        text = screen(live)
        assert "What differs between two moments" in text
        assert "Arrived: " in text
        await pilot.press("down", "B")
        await pilot.pause()
        assert not isinstance(live.screen, ComparisonDialog)

    play(live, act, (80, 24))
