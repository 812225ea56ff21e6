"""The header of KV-cache events names what is not known."""

from seqtop.kv.messages import AllBlocksCleared, UnknownEvent
from seqtop.transport.connection import ConnectionState
from tests.support.kv_scene import HOSTILE, ScriptedKvSource, app_of, digest, run
from tests.support.piloting import play, screen


def test_unknown_figures_are_never_a_zero() -> None:
    source = ScriptedKvSource()
    app = app_of(source)
    with play(app, (100, 30)) as pilot:
        assert "no message yet" in screen(app)
        assert "blocks 0" not in screen(app)
        source.send(run(1, 4, 2, digest(1, 3), medium=None), UnknownEvent(HOSTILE))
        source.cache.mark_gap("2 messages before number 7 missing")
        pilot.draw()
        shown = screen(app)
        assert "▲ GAP" in shown
        assert "Incomplete: 2 messages before number 7 missing." in shown
        assert "unknown tier" in shown
        assert "at least block 2 of its prefix" in shown
        assert "unknown event kinds 1" in shown
        pilot.press("2")
        assert "its first block is not known to be cached" in screen(app)
        source.send(AllBlocksCleared())
        app.draw()
        pilot.press("1")
        assert "▲ GAP" not in screen(app)
        assert "No block is known to be cached." in screen(app)
        pilot.press("[", "]", "o", "right", "down", "end", "2", "enter")


def test_a_lost_connection_is_seen(source: ScriptedKvSource) -> None:
    source.connection.state = ConnectionState.LOST
    source.connection.detail = "the connection to tcp://127.0.0.1:5557 is lost"
    app = app_of(source)
    with play(app):
        assert "✗ LOST" in screen(app)
        assert "The connection to tcp://127.0.0.1:5557 is lost." in screen(app)
