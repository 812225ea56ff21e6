"""A run in which checks fail, and access to what the checks screen shows."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.checks.screen import ChecksScreen
from seqtop.wire.messages import Heartbeat
from tests.support.piloting import SCREENS
from tests.support.scripted import ScriptedSource, scene

KEY = str(SCREENS.index(ChecksScreen) + 1)


def recorded() -> ScriptedSource:
    """A scene in which checks fail, kept on record."""
    source = ScriptedSource()
    scene(source, max_num_batched_tokens=200)
    source.apply(
        Heartbeat(time=source.state.time, step=source.state.step)
    )  # after the last finding
    return source


def found(app: SeqtopApp) -> list[tuple[int, str]]:
    assert app.ui.checks.checker is not None
    return [
        (finding.position, finding.finding.rule) for finding in app.ui.checks.checker.findings()
    ]
