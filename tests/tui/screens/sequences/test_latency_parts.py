"""The parts of a request's latency in the detail pane, and the way to their steps."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.latency_parts import LatencyParts
from seqtop.wire.messages import Heartbeat
from tests.support.latency_run import latency_run
from tests.support.piloting import notices, play, screen, until
from tests.support.scripted import Script, ScriptedSource


@pytest.fixture
def explained() -> SeqtopApp:
    source, _ = latency_run()
    app = SeqtopApp(source, clock=lambda: 0.0)
    app.ui.cursor.pending = "short"
    return app


async def opened(app: SeqtopApp, pilot: Pilot[int]) -> None:
    await until(pilot, lambda: app.ui.selection is not None)
    await pilot.press("right_parenthesis")
    await until(pilot, lambda: "TTFT" in screen(app))


def test_the_parts_of_a_latency(explained: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await opened(explained, pilot)
        text = " ".join(screen(explained).split())
        assert "TTFT 102 ms, end to end 252 ms (stop)" in text
        assert (
            "queued 50.0 ms 20% step 1 too few blocks are free (3 more blocks needed); long held"
            in text
        )
        assert "preempted 50.0 ms 20% step 3 preempted to make room for long" in text
        await pilot.press("tab")
        assert isinstance(explained.focused, LatencyParts)

    play(explained, act, (100, 60))


def test_keys_and_clicks_lead_to_the_steps_of_parts(explained: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await opened(explained, pilot)
        await pilot.press("right_parenthesis")
        await pilot.pause()
        assert "No part of its latency after this moment." in notices(explained)
        steps = []
        for _ in range(5):
            await pilot.press("left_parenthesis")
            await pilot.pause()
            steps.append(explained.ui.state.step)
        assert steps == [5, 4, 3, 2, 1]
        text = screen(explained)
        assert "▸ ░" in text
        assert "step 3" in text, "what comes later stays in sight"
        await pilot.press("right_parenthesis")
        await pilot.pause()
        assert explained.ui.state.step == 2
        line = next(
            number
            for number, line in enumerate(screen(explained).splitlines())
            if "step 3" in line and "preempted" in line
        )
        pane = explained.screen.query_one(LatencyParts)
        await pilot.click(LatencyParts, offset=(5, line - pane.region.y))
        await pilot.pause()
        assert explained.ui.state.step == 3

    play(explained, act, (100, 60))


def test_an_unfinished_request_is_explained_further_as_it_runs() -> None:
    script = Script(ScriptedSource())
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    script.arrive("a")
    script.step(prefill={"a": 40})
    app.ui.cursor.pending = "a"

    async def act(pilot: Pilot[int]) -> None:
        await opened(app, pilot)
        for _ in range(3):
            script.step()
        script.source.apply(Heartbeat(time=script.time + 2.0, step=3))
        await until(pilot, lambda: "3 tokens; 3 steps" in screen(app))
        text = " ".join(screen(app).split())
        assert "unknown 2.00 s" in text
        assert "no step has ended since then" in text

    play(app, act, (100, 50))
