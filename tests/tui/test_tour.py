"""The tour of the demo, on an engine that has not yet done what a stop shows."""

from seqtop.tui.app import SeqtopApp
from tests.support.block_screen import pool
from tests.support.piloting import play, selected, until, words
from tests.support.scripted import Script, ScriptedSource, scene


def test_a_stop_waits_for_its_moment() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source, clock=lambda: 0.0, has_tour=True)
    with play(app, (120, 40)) as pilot:
        script.arrive("one")
        script.step(prefill={"one": 40})
        until(pilot, lambda: "Tour, 1 of 8: A block" in words(app))
        pilot.press("N")
        until(pilot, lambda: "the tour waits for it" in words(app))
        assert not app.ui.paused
        script.arrive("two")
        script.step(prefill={"two": 8}, share={"two": "one"})
        until(pilot, lambda: "This prompt begins as another one does." in words(app))
        assert app.ui.paused
        assert selected(app) == "two"
        pilot.press(*["N"] * 6)
        assert "Tour, 8 of 8" in words(app)
        assert "N ends the tour" in words(app)
        assert not app.ui.paused
        pilot.press("N")
        assert "Tour" not in words(app)


def test_a_key_begins_the_tour_where_it_is_offered() -> None:
    source = ScriptedSource()
    scene(source)
    app = SeqtopApp(source, clock=lambda: 0.0, offers_tour=True)
    with play(app, (120, 40)) as pilot:
        assert "N Tour" in words(app)
        assert "1 of 8" not in words(app)
        pilot.press("N")
        until(pilot, lambda: "Tour, 1 of 8: A block" in words(app))
        pilot.press("N")
        until(pilot, lambda: "Tour, 2 of 8" in words(app))


def test_the_map_of_a_stop_is_in_sight_in_a_small_terminal() -> None:
    source = ScriptedSource()
    scene(source)
    app = SeqtopApp(source, clock=lambda: 0.0, has_tour=True)
    with play(app, (80, 24)) as pilot:
        until(pilot, lambda: "Tour, 1 of 8: A block" in words(app))
        assert pool(app).size.height >= 3
