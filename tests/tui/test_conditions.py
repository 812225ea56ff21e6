"""Conditions of which the app tells its user."""

import re

import pytest

from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.tui.app import SeqtopApp
from seqtop.tui.settings import Settings
from tests.support.commands import SEQTOP
from tests.support.events import arrival, engine_info, stats, step
from tests.support.piloting import notices, play, until
from tests.support.scripted import ScriptedSource
from tests.support.terminal import Terminal

ON = Settings(on=("waiting>5", "status:waiting prompt>100"))


def test_notices_of_the_beginning_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bells: list[None] = []
    monkeypatch.setattr(SeqtopApp, "bell", lambda _: bells.append(None))
    sources = [ScriptedSource(engine_info(engine_id=name)) for name in ("one", "two")]
    app = SeqtopApp(*sources, clock=lambda: 0.0, settings=ON)
    with play(app) as pilot:
        sources[1].apply(step(0, stats=stats(num_waiting=6)))
        until(pilot, lambda: bool(notices(app)))
        assert notices(app) == ["two: waiting>5 holds since step 0."]
        assert len(bells) == 1
        sources[1].apply(step(1, stats=stats(num_waiting=5)))
        ended = re.compile(r"two: waiting>5 held for .* s, up to step 1\.")
        until(pilot, lambda: any(map(ended.fullmatch, notices(app))))
        assert len(bells) == 1


def test_a_recording_tells_nothing() -> None:
    source = ScriptedSource(engine_info())
    source.apply(step(0, stats=stats(num_waiting=6)))
    app = SeqtopApp(Playback(source.history, "run.seqtop", paused=True), settings=ON)
    assert app._watches == []


def test_the_terminal_rings_and_is_asked_for_a_notification(endpoint: str) -> None:
    with MessagePublisher(endpoint, engine_info(), EngineState()) as publisher:
        publisher.publish(arrival(1))
        app = Terminal(*SEQTOP, "attach", endpoint, "--on", "waiting>1")
        try:
            app.wait_until(lambda: "req-1" in app.text)
            publisher.publish(step(0, stats=stats(num_waiting=2)))
            app.wait_until(lambda: "waiting>1 holds since step 0" in app.text)
            asked = b"\x1b]9;test: waiting>1 holds since step 0.\x07"
            app.wait_until(lambda: asked in app.output)
            assert b"\x07" in app.output.replace(asked, b"")
        finally:
            app.close()
