"""The wait graph of the selected request in the detail pane."""

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.tui.app import SeqtopApp
from tests.support.events import arrival, engine_info, step, update, wait_reason
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
        assert "enough blocks are free; early-0, early-1, early-2 and 3 more hold some." in text
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


def of_transfer(engine_id: str, transfer_id: str) -> ScriptedSource:
    """An engine with a request that has a transfer, and 2 of 3 tokens computed."""
    arrived = arrival(1)
    arrived.transfer_id = transfer_id
    computed = update(1, SequenceStatus.RUNNING, computed=2, blocks=[0])
    return ScriptedSource(engine_info(engine_id=engine_id), arrived, step(7, sequences=[computed]))


@pytest.mark.parametrize(
    ("transfer_id", "text"),
    [
        ("4711", "Transfer: req-1 on P runs: 2 of 3 computed (step 7)."),
        ("4712", "No other attached engine has its transfer 4711."),
    ],
)
def test_the_other_half_of_a_request_is_found_by_its_transfer(transfer_id: str, text: str) -> None:
    sources = of_transfer("D", "4711"), of_transfer("P", transfer_id)
    app = SeqtopApp(*sources, clock=lambda: 0.0)
    with play(app, (100, 60)) as pilot:
        pilot.press("1", "Q")
        until(pilot, lambda: text in words(app))
        pilot.press("space")
        until(pilot, lambda: "ransfer" not in words(app))
