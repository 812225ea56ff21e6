"""Access to the list of steps in tests of its screen."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.steps.screen import StepsScreen
from seqtop.tui.screens.steps.table import StepRows
from tests.support.piloting import SCREENS, Pilot
from tests.support.scripted import ScriptedSource, scene


def recorded() -> ScriptedSource:
    source = ScriptedSource()
    scene(source, hostile="?")
    return source


def opened(app: SeqtopApp, pilot: Pilot) -> StepRows:
    pilot.press(str(SCREENS.index(StepsScreen) + 1))
    assert isinstance(app.screen, StepsScreen)
    return app.screen.query_one(StepRows)


def step_at(app: SeqtopApp, position: int | None) -> int:
    assert position is not None
    return app.ui.source.history.index[position].step
