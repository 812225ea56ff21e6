"""The wait graph of the selected request in the detail pane."""

import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.events import wait_reason
from tests.support.piloting import play, screen, until, words
from tests.support.scripted import Script, ScriptedSource


def test_the_key_shows_whom_a_request_waits_for_and_how_long() -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=64)
    names = [f"early-{number}" for number in range(6)]
    for name in (*names, "head", "behind"):
        script.arrive(name)
    for name in names:
        script.step(prefill={name: 40}, waits=[wait_reason("head", "no_blocks", 2)])
    app = SeqtopApp(source, clock=lambda: 0.0)
    app.ui.cursor.pending = "behind"
    with play(app, (100, 60)) as pilot:
        until(pilot, lambda: app.ui.selection is not None)
        pilot.press("Q")
        until(pilot, lambda: "It advances when" in screen(app))
        text = words(app)
        assert "It advances when early-0, early-1, early-2 or one of 3 more free some." in text
        assert "1 sequence ahead; remaining wait ~" in text
        assert "6 admissions in the last minute." in text
        assert "└ head waits: too few blocks are free; 2 more blocks needed" in text
        assert "blocks runs: 1 of at most 64 output tokens" in text


@pytest.mark.parametrize("name", ["gone", "first"])
def test_a_request_that_nothing_lets_advance_is_told(name: str) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("first")
    for _ in range(3):
        script.step(waits=[wait_reason(name, "no_blocks", 1)])
    app = SeqtopApp(source, clock=lambda: 0.0)
    app.ui.cursor.pending = "first"
    with play(app, (100, 60)) as pilot:
        until(pilot, lambda: app.ui.selection is not None)
        pilot.press("Q")
        until(pilot, lambda: "Nothing that is known lets first advance" in screen(app))
        assert "remaining wait" not in screen(app)
