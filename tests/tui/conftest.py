import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.screen_fixtures import lines as lines
from tests.support.screen_fixtures import plain_environment as plain_environment
from tests.support.scripted import ScriptedSource, scene


@pytest.fixture
def source() -> ScriptedSource:
    """A source with one of everything."""
    source = ScriptedSource()
    scene(source)
    return source


@pytest.fixture
def app(source: ScriptedSource) -> SeqtopApp:
    return SeqtopApp(source, clock=lambda: 0.0)


@pytest.fixture
def live() -> SeqtopApp:
    source = ScriptedSource()
    scene(source, hostile="?")
    return SeqtopApp(source, clock=lambda: 0.0)
