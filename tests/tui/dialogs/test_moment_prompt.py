"""Going to a moment that was typed."""

import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen
from tests.support.simulated_engine import START


def test_a_time_is_as_good_as_a_step(live: SeqtopApp) -> None:
    with play(live, (120, 30)) as pilot:

        def choose(text: str) -> None:
            pilot.press("colon", *text, "enter")

        choose("1s")
        assert live.ui.state.time == pytest.approx(START + 1.0, abs=0.06)
        before = live.ui.state.time
        choose("-500ms")
        assert live.ui.state.time == pytest.approx(before - 0.5, abs=0.06)
        choose("22:13:21.5")
        assert live.ui.state.time == pytest.approx(START + 1.5, abs=0.06)
        choose("2h")
        assert "The history ends earlier: this is its last moment." in screen(live)
