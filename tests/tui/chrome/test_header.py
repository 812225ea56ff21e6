"""The header: the connection, its age, troubles and rates."""

from collections import Counter

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.live.playback import Playback
from seqtop.text import format as fmt
from seqtop.transport.connection import ConnectionState
from seqtop.tui import seek
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.header import _waiting, cache, identity, throughput
from seqtop.tui.chrome.notice import SENTENCES
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import plain
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import NotPublished
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play, screen, words
from tests.support.scripted import Script, ScriptedSource, engine_info, scene


@pytest.mark.parametrize("state", [ConnectionState.LOST, ConnectionState.STOPPED])
def test_rates_of_an_engine_that_is_gone_are_unknown(
    source: ScriptedSource, app: SeqtopApp, state: ConnectionState
) -> None:
    app.ui.update()
    figures = app.ui.step_series.last_second(app.ui.state.time)
    rates = {fmt.rate(figures.rate(name)) for name in ("steps", "prefill", "generated")}
    inks = {text: ink for text, ink in throughput(app.ui, 200) if text in rates}
    assert set(inks.values()) == {"strong", "delta"}
    source.connection.state = state
    texts = [text for text, _ in throughput(app.ui, 200)]
    assert not rates.intersection(texts)
    assert texts.count(fmt.UNKNOWN) == 3
    app.ui.time_travel.pause()
    assert rates.issubset(text for text, _ in throughput(app.ui, 200))


def test_an_engine_that_is_lost_looks_lost(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (120, 60)) as pilot:
        text = screen(app)
        assert "  limited by" in text
        assert "● running" in text
        source.connect(ConnectionState.LOST)
        pilot.draw()
        text = screen(app)
        assert "last known: limited by" in text
        assert "● running" not in text.partition("Sequences ─")[2]
        assert "? running" in text
        assert "? waiting" in text
        assert "✓ stop" in text, "what has ended has ended"


def test_an_engine_that_is_called_by_its_model_is_named_once() -> None:
    source = ScriptedSource()
    source.state.info = engine_info(engine_id="org/model dp1", model="org/model")
    line = plain(identity(SeqtopApp(source).ui, 100, ""))
    assert line.startswith("org/model dp1  ")
    assert line.count("org/model") == 1


def test_the_state_of_the_connection_is_a_word(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (40, 10)) as pilot:
        for size in ((40, 10), (80, 24), (200, 60)):
            pilot.resize_terminal(*size)
            for state in ConnectionState:
                source.connect(state)
                pilot.draw()
                text = screen(app)
                assert state.name in text.splitlines()[0]
                assert SENTENCES[state][:20] in text
                assert "req-1" in text


def test_the_connections_own_sentence_is_shown_whole(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    detail = "tcp://10.0.0.1:5557 speaks protocol version 9, this seqtop knows version 1."
    with play(app, (50, 20)) as pilot:
        source.connect(ConnectionState.INCOMPATIBLE, detail)
        pilot.draw()
        assert detail in words(app)
        source.connect(ConnectionState.LIVE)
        pilot.draw()
        assert "speaks" not in screen(app)


def test_a_lost_engine_has_an_age(source: ScriptedSource) -> None:
    clock = [50.0]
    app = SeqtopApp(source, clock=lambda: clock[0])
    with play(app) as pilot:
        source.connect(ConnectionState.LOST)
        clock[0] += 125
        pilot.draw()
        assert "✗ LOST 2m 05s" in screen(app)
        source.connection.num_messages += 1
        source.connect(ConnectionState.LIVE)
        pilot.draw()
        assert "● LIVE" in screen(app)


@pytest.mark.parametrize("name", ["", "run.seqtop"])
def test_a_prediction_says_that_it_is_one(name: str) -> None:
    app = SeqtopApp(scene(ScriptedSource(), predicted_from=name).source, clock=lambda: 0.0)
    with play(app):
        assert ("PREDICTION" in screen(app)) == bool(name)


def test_troubles_are_counted(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (110, 24)) as pilot:
        assert "missed" not in screen(app)
        source.connection.num_missed, source.connection.num_errors = 1_234, 5
        source.state.report_anomaly("a thing that did not fit")
        source.connect(ConnectionState.LIVE)
        pilot.draw()
        assert "missed 1,234  errors 5  anomalies 1" in screen(app)
        with app.ui.lock:
            narrow = plain(cache(app.ui, 78))
        assert " free + " in narrow
        assert "missed 1,234  errors 5" in narrow
        assert "not published" not in screen(app)
        time, reason = source.state.time, "request 'a' has 7 prompt tokens, and had 8"
        source.apply(NotPublished(time=time, num_messages=3, reason=reason))
        pilot.draw()
        assert "not published 3" in screen(app)


def test_a_lost_engine_ages_in_the_header_and_the_rows_alone(lines: Counter[LineView]) -> None:
    clock = [100.0]
    script, _ = crowd(5)
    app = SeqtopApp(script.source, clock=lambda: clock[0])
    with play(app, (120, 24)) as pilot:
        script.source.connect(ConnectionState.LOST, "No word from the engine.")
        before = drawn(app, pilot, lines)
        clock[0] += 3
        after = drawn(app, pilot, lines)
        assert {name for name in after if after[name] != before[name]} == {"header", "Rows"}
        assert after["header"] - before["header"] == 1


def test_a_full_pool_and_a_long_queue_look_hot() -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=4)
    script.arrive("one", num_prompt=64)
    script.step(prefill={"one": 64})
    ui = UiState(source, clock=lambda: 0.0)
    ui.update()
    bar = [style for text, style in cache(ui, 118) if "━" in text]
    assert bar == ["prefill-low", "prefill-mid", "computed", "waiting", "preempted"]
    assert ("100%", "preempted") in [(text.strip(), style) for text, style in cache(ui, 118)]
    assert _waiting(3, 4)[1] == (" 3", "waiting")
    assert _waiting(5, 4)[1] == (" 5", "preempted")
    assert _waiting(0, 4)[1] == (" 0", "dim")


def test_rates_are_those_of_the_moment() -> None:
    source = ScriptedSource()
    ui = UiState(source, clock=lambda: 0.0)
    shown: dict[float, str] = {}

    def note() -> None:
        ui.update()
        shown[ui.state.time] = plain(throughput(ui, 200))

    source.after_event = note
    scene(source)
    for _ in range(3):
        ui.time_travel.go(seek.by_steps(-10), "")
        ui.update()
        assert ui.paused
        assert plain(throughput(ui, 200)) == shown[ui.state.time]
    ui.time_travel.resume()
    ui.update()
    assert plain(throughput(ui, 200)) == shown[ui.newest.time]


def test_sparklines_of_a_replay_end_at_the_moment_on_show() -> None:
    history = MemoryStore()
    script = Script(ScriptedSource(history=history))
    script.arrive("req", num_prompt=4)
    script.step(prefill={"req": 4})
    for count in range(6):
        script.time += 1.0
        for _ in range(count + 1):
            script.step()
    replay = Playback(history, "run.seqtop", paused=True)
    app = SeqtopApp(replay, clock=lambda: 0.0)
    with play(app, (200, 40)) as pilot:

        def shown(*keys: str) -> int:
            pilot.press(*keys)
            series, time = app.ui.step_series, app.ui.state.time
            num_seconds = len(series.sums_by_second("generated", time, 60))
            titles = [title for title in ("   tok/s ", "KV use ") if title in screen(app)]
            assert len(titles) == (2 if num_seconds else 0)
            return num_seconds

        assert shown() == 0
        while app.ui.time_travel.position < history.last:
            pilot.press("right")
        assert shown() == 7
        assert shown("colon", *"2.5s", "enter") == 2
        assert shown("0") == 0
