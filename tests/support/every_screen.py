"""An app with every screen, and the names of the screens."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.fleet.screen import FleetScreen
from tests.support.piloting import SCREENS
from tests.support.scripted import ScriptedSource, scene

NAMES = [*(screen.TAB.name for screen in SCREENS), FleetScreen.TAB.name]


def several() -> SeqtopApp:
    """An app with every screen there is: one for two engines, in whose records checks fail."""
    sources = [ScriptedSource() for _ in range(2)]
    for source in sources:
        scene(source, max_num_batched_tokens=60)
    return SeqtopApp(*sources, clock=lambda: 0.0)


def leading_to(name: str) -> str:
    names = [screen.TAB.name for screen in SCREENS]
    return str(names.index(name) + 1) if name in names else FleetScreen.TAB.key
