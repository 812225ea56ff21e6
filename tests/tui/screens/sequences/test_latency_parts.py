"""The parts of a request's latency in the detail pane, and the way to their steps."""

import re

import pytest

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.latency_parts import LatencyParts
from seqtop.wire.messages import Heartbeat
from tests.support.latency_run import latency_run
from tests.support.piloting import Pilot, notices, play, screen, until, words
from tests.support.scripted import Script, ScriptedSource


@pytest.fixture
def explained() -> SeqtopApp:
    source, _ = latency_run()
    app = SeqtopApp(source, clock=lambda: 0.0)
    app.ui.cursor.pending = "short"
    return app


def opened(app: SeqtopApp, pilot: Pilot) -> None:
    until(pilot, lambda: app.ui.selection is not None)
    pilot.press("right_parenthesis")
    until(pilot, lambda: "TTFT" in screen(app) and "Reading the history" not in screen(app))


def test_the_parts_of_a_latency(explained: SeqtopApp) -> None:
    with play(explained, (100, 60)) as pilot:
        opened(explained, pilot)
        text = words(explained)
        assert "TTFT 102 ms, end to end 252 ms (stop)" in text
        queued = re.search(r"queued 50.0 ms 20% (\S+) step 1 too few blocks are free", text)
        preempted = re.search(r"preempted 50.0 ms 20% (\S+) step 3 preempted to make room", text)
        assert queued
        assert preempted
        axes = queued[1], preempted[1]
        assert all(re.fullmatch("·*━+·*", axis) for axis in axes)
        assert len(axes[0]) == len(axes[1])
        assert axes[0].rindex("━") < axes[1].index("━"), "in their order on one axis"
        pilot.press("tab")
        assert isinstance(explained.focused, LatencyParts)


def test_the_charges_below_the_parts(explained: SeqtopApp) -> None:
    with play(explained, (100, 60)) as pilot:
        opened(explained, pilot)
        pilot.press("tab", "end")
        until(pilot, lambda: "unexplained" in screen(explained))
        text = words(explained)
        assert "Charged to" in text
        assert "long 100 ms 40%" in text
        assert "no free blocks" in text.partition("Charged to")[2]
        assert "unexplained 100 ms 40% shared steps, before there were enough for estimates" in text


def test_keys_and_clicks_lead_to_the_steps_of_parts(explained: SeqtopApp) -> None:
    with play(explained, (100, 60)) as pilot:
        opened(explained, pilot)
        pilot.press("right_parenthesis")
        assert "No part of its latency after this moment." in notices(explained)
        steps = []
        for _ in range(5):
            pilot.press("left_parenthesis")
            steps.append(explained.ui.state.step)
        assert steps == [5, 4, 3, 2, 1]
        text = screen(explained)
        assert "▸ ░" in text
        assert "step 3" in text, "what comes later stays in sight"
        pilot.press("right_parenthesis")
        assert explained.ui.state.step == 2
        line = next(
            number
            for number, line in enumerate(screen(explained).splitlines())
            if "step 3" in line and "preempted" in line
        )
        pane = explained.screen.query_one(LatencyParts)
        pilot.click(LatencyParts, offset=(5, line - pane.region.y))
        assert explained.ui.state.step == 3


def test_an_unfinished_request_is_explained_further_as_it_runs() -> None:
    script = Script(ScriptedSource())
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    script.arrive("a")
    script.step(prefill={"a": 40})
    app.ui.cursor.pending = "a"
    with play(app, (100, 50)) as pilot:
        opened(app, pilot)
        for _ in range(3):
            script.step()
        script.source.apply(Heartbeat(time=script.time + 2.0, step=3))
        until(pilot, lambda: "3 tokens; 3 steps" in screen(app))
        text = words(app)
        assert "unknown 2.00 s" in text
        assert "no step has ended since then" in text
