"""Access to the rows of the timeline in tests of its screen."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.timeline.rows import TimelineRows
from seqtop.tui.screens.timeline.screen import TimelineScreen
from tests.support.piloting import SCREENS, Pilot, rows


def opened(app: SeqtopApp, pilot: Pilot) -> TimelineRows:
    pilot.press(str(SCREENS.index(TimelineScreen) + 1))
    assert isinstance(app.screen, TimelineScreen)
    return app.screen.query_one(TimelineRows)


def line_of(app: SeqtopApp, name: str) -> str:
    return next(line for line in rows(app) if name in line)
