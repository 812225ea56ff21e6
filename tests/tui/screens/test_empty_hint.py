"""The hints that stand in the place of an empty table."""

import pytest

from seqtop.text import format as fmt
from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, engine_info


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"control": True}, "Press n to submit a prompt"),
        ({"control": False}, "curl http://HOST:PORT/v1/completions"),
    ],
)
def test_an_idle_engine_says_what_to_do(info: dict[str, bool], words: str) -> None:
    app = SeqtopApp(ScriptedSource(engine_info(**info)))
    with play(app) as pilot:
        assert "No sequences yet." in screen(app)
        assert words in screen(app)
        pilot.press("x")
        pilot.press("enter", "down", "end", "greater_than_sign", "f", "space", "space")
        assert "No sequence is selected." in screen(app)


def test_an_engine_whose_adapter_cannot_observe_it_says_why() -> None:
    reason = "vLLM 0.11.2 cannot be observed, as its scheduler has no _preempt_request"
    app = SeqtopApp(ScriptedSource(engine_info(not_available={"requests": reason})))
    with play(app):
        assert "The sequences of this engine cannot be shown." in screen(app)
        assert reason in screen(app)
        assert "nothing is known: this engine cannot be observed" in screen(app)
        for status in ("● {} running", "○ {} waiting", "✓ {} finished"):
            assert status.format(fmt.UNKNOWN) in screen(app)
        assert "No sequences yet." not in screen(app)


def test_the_detail_of_no_sequence_says_so_in_its_frame() -> None:
    with play(SeqtopApp(ScriptedSource()), (200, 60)) as pilot:
        assert "No sequence is selected." in screen(pilot.app)


def test_an_engine_never_heard_of_has_an_address() -> None:
    source = ScriptedSource()
    source.connect(ConnectionState.CONNECTING)
    app = SeqtopApp(source, title="seqtop")
    with play(app) as pilot:
        text = screen(app)
        assert "◌ CONNECTING" in text
        assert "No message from ipc:///run/demo yet." in text
        pilot.press("n")
        assert len(app.screen_stack) == 1


@pytest.mark.parametrize(
    "state", [ConnectionState.STOPPED, ConnectionState.INCOMPATIBLE, ConnectionState.REFUSED]
)
def test_an_engine_that_never_was_there_has_a_reason(state: ConnectionState) -> None:
    source = ScriptedSource()
    source.connect(state, "The bundled engine ended: there is no model; q quits")
    with play(SeqtopApp(source, has_tour=state is ConnectionState.STOPPED)) as pilot:
        pilot.press("1")
        (above, below) = (line for line in screen(pilot.app).split("\n") if "no model" in line)
        assert above.startswith(" The bundled engine ended: ")
        assert below.strip("│ ") == "The bundled engine ended: there is no model; q quits"
        assert "There is no engine to show." in screen(pilot.app)
        assert "begins as soon as" not in screen(pilot.app)


def test_the_first_sequence_takes_the_hints_place() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source)
    with play(app) as pilot:
        assert "No sequences yet." in screen(app)
        script.arrive("first")
        pilot.draw()
        assert "No sequences yet." not in screen(app)
        assert "▌first" in screen(app)
