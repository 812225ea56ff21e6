"""Several engines, one of them on show."""

from seqtop.tui.engines import Engines
from seqtop.tui.settings import Settings
from tests.support.scripted import ScriptedSource


def test_each_engine_has_a_state_of_its_own_and_one_is_shown() -> None:
    sources = [ScriptedSource() for _ in range(3)]
    engines = Engines(sources, lambda: 0.0, Settings())
    assert len(engines) == 3
    assert [ui.source for ui in engines.all] == sources
    engines.shown_index = 2
    assert engines.ui.source is sources[2]
