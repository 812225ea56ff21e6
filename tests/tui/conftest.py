import time
from collections import Counter
from collections.abc import Iterator

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from tests.support.drawing import counted_lines
from tests.support.scripted import ScriptedSource, scene


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No preference of whoever runs the tests shows in what they see."""
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


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
def lines() -> Iterator[Counter[LineView]]:
    """The number of lines that each view has drawn."""
    with counted_lines() as counts:
        yield counts


@pytest.fixture
def live() -> SeqtopApp:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    return SeqtopApp(source, clock=lambda: 0.0)
