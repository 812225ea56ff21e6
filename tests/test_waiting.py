"""A condition that never comes true says which one it is, and what there was instead."""

import pytest

from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from tests.support import piloting, waiting
from tests.support.scripted import ScriptedSource


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (waiting, piloting):
        monkeypatch.setattr(module, "SECONDS", 0.0)


def test_source_and_variables_of_a_condition_are_shown() -> None:
    session, number = ScriptedSource(), 7
    with pytest.raises(AssertionError) as failure:
        waiting.wait_until(lambda: session.connection.state is ConnectionState.LOST or number == 8)
    for part in ("session.connection.state is ConnectionState.LOST", "number: 7", "LIVE: 'live'"):
        assert part in str(failure.value)
    with pytest.raises(AssertionError, match=r"it never came true: <built-in method"):
        waiting.wait_until([].copy)


def test_screen_is_shown_on_which_a_condition_never_came_true() -> None:
    app = SeqtopApp(ScriptedSource())
    with piloting.play(app) as pilot:
        with pytest.raises(AssertionError) as failure:
            piloting.until(pilot, lambda: "a fox" in piloting.screen(app))
        assert '"a fox" in piloting.screen(app)' in str(failure.value)
        assert piloting.screen(app) in str(failure.value)
