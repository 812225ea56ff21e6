"""The app with three engines."""

import pytest

from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from tests.support.scripted import Script, ScriptedSource, scene


@pytest.fixture
def sources() -> list[ScriptedSource]:
    """A busy engine, one that has just begun, and one that nothing is known of."""
    busy, young, unknown = ScriptedSource(), ScriptedSource(), ScriptedSource()
    scene(busy)
    script = Script(young, engine_id="rank-1", incarnation="b2")
    script.arrive("first")
    script.step(prefill={"first": 40})
    unknown.connection.state = ConnectionState.CONNECTING
    unknown.connection.endpoint = "tcp://10.0.0.7:5557"
    return [busy, young, unknown]


@pytest.fixture
def fleet(sources: list[ScriptedSource]) -> SeqtopApp:
    return SeqtopApp(*sources, clock=lambda: 0.0)
