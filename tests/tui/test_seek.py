"""Seeking: swaps, and steps of a twentieth of the history."""

import pytest

from seqtop.history.event_index import EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.tui import seek
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen, words
from tests.support.random_engine import RandomEngine
from tests.support.scripted import Script, ScriptedSource
from tests.support.simulated_engine import START


def test_swaps_are_found() -> None:
    source = ScriptedSource(*RandomEngine(11, 60, num_blocks=24))
    app = SeqtopApp(source, clock=lambda: 0.0)
    history = source.history
    assert history.index.previous(EventKind.SWAP, history.last) is not None
    with play(app, (120, 30)) as pilot:
        pilot.press("w")
        first = app.ui.time_travel.position
        assert history.index[first].kind & EventKind.SWAP
        pilot.press("w")
        assert app.ui.time_travel.position < first
        pilot.press("W")
        assert app.ui.time_travel.position == first
        pilot.press("0", "w")
        assert "No swap before this moment in the history." in words(app)


def test_a_step_that_lasts_for_columns_is_left_at_once() -> None:
    """Arrivals between two steps have positions of their own, with the number of the former."""
    history = MemoryStore()
    engine = Script(ScriptedSource(history=history))
    engine.arrive("early")
    for _ in range(3):
        engine.step()
    engine.time += 5.0
    engine.arrive("late")
    step, middle = history.index[history.last].step, engine.time - 2.0
    assert history.index[history.index.at_time(middle)].step == step
    for back in (seek.to_time(middle, -1), seek.by_share(-0.4)):
        target = back(history, history.last)
        assert target is not None
        assert history.index[target].step == step - 1
    forward = seek.to_time(middle, 1)(history, history.index.at_step(step - 1))
    assert forward is not None
    assert history.index[forward].step == step


def test_by_a_twentieth_of_the_record(live: SeqtopApp) -> None:
    with play(live, (120, 30)) as pilot:
        begin, end = START, live.ui.state.time
        pilot.press(*["ctrl+left"] * 4)
        assert live.ui.state.time == pytest.approx(end - (end - begin) / 5, abs=0.25)
        pilot.press("ctrl+right")
        assert live.ui.state.time == pytest.approx(end - (end - begin) * 0.15, abs=0.25)
        pilot.press(*["ctrl+left"] * 25)
        assert "This is the oldest moment in the history." in screen(live)
