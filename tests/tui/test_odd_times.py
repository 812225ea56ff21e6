"""Times that no clock shows, as in a damaged recording: screens are drawn, and keys work."""

import math

import pytest

from seqtop.live.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.overview.screen import OverviewScreen
from seqtop.tui.screens.timeline.screen import TimelineScreen
from tests.support import events
from tests.support.every_screen import leading_to
from tests.support.piloting import play
from tests.support.scripted import ScriptedSource, scene


@pytest.mark.parametrize("screen", [OverviewScreen, TimelineScreen])
@pytest.mark.parametrize("time", [math.inf, 1e308, -1e308])
def test_axis_of_any_time(time: float, screen: type[OverviewScreen | TimelineScreen]) -> None:
    source = ScriptedSource()
    scene(source)
    arrived = events.arrival(90)
    arrived.arrival_time = time
    source.apply(arrived)
    number = source.state.step + 1
    for start, end in ((time, time), (source.state.time, time), (time, source.state.time)):
        source.apply(events.step(number, start_time=start, time=end))
        number += 1
    history = source.history
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True, position=history.last))
    with play(app) as pilot:
        pilot.press(leading_to(screen.TAB.name), "plus", "f", "a", "left")
        pilot.draw()
