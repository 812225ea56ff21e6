"""The header: the connection, its age, troubles and rates."""

import asyncio
from collections import Counter

import pytest
from textual.pilot import Pilot

from seqtop.live.connection import ConnectionState
from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.header import cache
from seqtop.tui.chrome.notice import SENTENCES
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import plain
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource


def test_rates_of_a_lost_engine_are_dim(source: ScriptedSource, app: SeqtopApp) -> None:
    from seqtop.tui.chrome.header import throughput

    app.ui.update()
    figures = app.ui.step_series.last_second(app.ui.state.time)
    assert figures is not None
    rates = {fmt.rate(figures.rate(name)) for name in ("steps", "prefill", "generated")}
    inks = {text: ink for text, ink in throughput(app.ui, 200) if text in rates}
    assert set(inks.values()) == {"strong"}
    source.connection.state = ConnectionState.LOST
    inks = {text: ink for text, ink in throughput(app.ui, 200) if text in rates}
    assert (len(inks), set(inks.values())) == (3, {"dim"})


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
def test_the_state_of_the_connection_is_a_word(
    source: ScriptedSource, app: SeqtopApp, size: tuple[int, int]
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for state in ConnectionState:
            source.connect(state)
            app.draw()
            await pilot.pause()
            text = screen(app)
            assert state.name in text.splitlines()[0]
            assert SENTENCES[state][:20] in text
            assert "req-1" in text

    play(app, act, size)


def test_the_connections_own_sentence_is_shown_whole(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    detail = "tcp://10.0.0.1:5557 speaks protocol version 9, this seqtop knows version 1."

    async def act(pilot: Pilot[int]) -> None:
        source.connect(ConnectionState.INCOMPATIBLE, detail)
        app.draw()
        await pilot.pause()
        assert detail in " ".join(screen(app).split())
        source.connect(ConnectionState.LIVE)
        app.draw()
        await pilot.pause()
        assert "speaks" not in screen(app)

    play(app, act, (50, 20))


def test_a_lost_engine_has_an_age(source: ScriptedSource) -> None:
    clock = [50.0]
    app = SeqtopApp(source, clock=lambda: clock[0])

    async def act(pilot: Pilot[int]) -> None:
        source.connect(ConnectionState.LOST)
        clock[0] += 125
        app.draw()
        await pilot.pause()
        assert "✗ LOST 2m 05s" in screen(app)
        source.connection.num_messages += 1
        source.connect(ConnectionState.LIVE)
        app.draw()
        await pilot.pause()
        assert "● LIVE" in screen(app)

    play(app, act)


def test_troubles_are_counted(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        assert "missed" not in screen(app)
        source.connection.num_missed, source.connection.num_errors = 1_234, 5
        source.state.report_anomaly("a thing that did not fit")
        source.connect(ConnectionState.LIVE)
        app.draw()
        await pilot.pause()
        assert "missed 1,234  errors 5  anomalies 1" in screen(app)
        with app.ui.lock:
            narrow = plain(cache(app.ui, 78))
        assert " free + " in narrow
        assert "missed 1,234  errors 5" in narrow

    play(app, act, (110, 24))


def test_a_lost_engine_ages_in_the_header_alone(lines: Counter[LineView]) -> None:
    async def run() -> None:
        clock = [100.0]
        script, _ = crowd(5)
        app = SeqtopApp(script.source, clock=lambda: clock[0])
        async with app.run_test(size=(120, 24)) as pilot:
            script.source.connect(ConnectionState.LOST, "No word from the engine.")
            before = await drawn(app, pilot, lines)
            clock[0] += 3
            after = await drawn(app, pilot, lines)
            assert {name for name in after if after[name] != before[name]} == {"header"}
            assert after["header"] - before["header"] == 1

    asyncio.run(run())
