"""The app with a recorded run."""

import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.scripted import ScriptedSource, scene


@pytest.fixture
def app() -> SeqtopApp:
    source = ScriptedSource()
    scene(source, hostile="?")
    return SeqtopApp(source, clock=lambda: 0.0)
