"""Dialogs that ask for one key or one number, or show a text."""

import base64
import json

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.text.sanitize import without_controls
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.prompts import (
    BlockPrompt,
    ComparisonDialog,
    Confirm,
    Dialog,
    copies,
    entry,
)
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.block_screen import pool
from tests.support.events import arrival, engine_info, step, update
from tests.support.piloting import burst, notices, play, screen, until, words
from tests.support.scripted import HOSTILE, Script, ScriptedSource


def test_a_second_enter_finds_nobody_to_answer(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        for keys in ("sq", "c", ":12", "b17"):
            burst(app, keys)
            until(pilot, lambda: isinstance(app.screen, Dialog) and app.focused is not None)
            pilot.pause()
            burst(app, "\r")
            burst(app, "\r")
            until(pilot, lambda: not isinstance(app.screen, Dialog))
            pilot.pause()
            assert app.is_running, keys


def test_a_dialog_is_in_the_middle(app: SeqtopApp) -> None:
    with play(app) as pilot:
        for key in ("s", "c", "G", "D", "I", "b", "colon", "semicolon", "n", "x", "R"):
            pilot.press(key)
            assert isinstance(app.screen, Dialog), key
            region = app.screen.query_one(".dialog").region
            assert abs(region.x - (app.size.width - region.right)) <= 1, key
            assert abs(region.y - (app.size.height - region.bottom)) <= 1, key
            pilot.press("escape")
            assert not isinstance(app.screen, Dialog), key


def test_all_lines_of_a_meaning_begin_in_its_column() -> None:
    assert entry("Queue", "in the queue", 7, 13).plain == "Queue  in the\n       queue"


def test_abort(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("x")
        assert isinstance(app.screen, Confirm)
        assert "Abort req-1?" in screen(app)
        pilot.press("n")
        assert isinstance(app.screen, SequencesScreen)
        pilot.press("x")
        pilot.press("escape")
        assert not source.aborted
        pilot.press("x")
        pilot.press("y")
        until(pilot, lambda: source.aborted == ["req-1"])
        until(pilot, lambda: "Aborted req-1." in notices(app))
        pilot.press("end", "x")
        assert any("has already finished" in notice for notice in notices(app))


def test_a_block_that_is_not_there_is_named(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("b", "minus", "enter")
        assert isinstance(app.screen, BlockPrompt)
        pilot.press("backspace", *"777", "enter")
        assert notices(app) == ["There is no block 777; the last is 255."]
        assert pool(app).cursor == 255


def test_two_moments_of_a_running_engine(live: SeqtopApp) -> None:
    with play(live, (80, 24)) as pilot:
        pilot.press("A", *["comma"] * 12, "B")
        assert isinstance(live.screen, ComparisonDialog)
        text = screen(live)
        assert "What differs between two moments" in text
        assert "output tok/s" in text
        pilot.press("down", "B")
        assert not isinstance(live.screen, ComparisonDialog)


def test_a_past_moment_is_compared_with_the_present() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source, clock=lambda: 0.0)
    script.arrive("mine")
    script.step(prefill={"mine": 40})
    for _ in range(40):
        script.step()
    with play(app, (80, 50)) as pilot:
        pilot.press(*["left"] * 20, "B")
        lines = words(app)
        assert "A: step 20, " in lines
        assert "B: step 40, " in lines
        assert "output tok/s, 5 s 20.0 20.0" in lines
        assert "TTFT p50, 60 s 52.0 ms 52.0 ms" in lines
        assert "mine running, +20 output tokens" in lines


def test_copying() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("mine", pieces=[HOSTILE])
    script.step(prefill={"mine": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        written: list[str] = []
        driver = app._driver
        driver.write = written.append  # type: ignore[assignment]

        def copied(key: str) -> str:
            written.clear()
            app.clear_notifications()
            pilot.press("y", "escape", "y", key)
            until(pilot, lambda: any("\x1b]52;c;" in text for text in written))
            until(pilot, lambda: any("Copied the" in notice for notice in notices(app)))
            (sent,) = [text for text in written if "\x1b]52;c;" in text]
            return base64.b64decode(sent.split(";")[2].rstrip("\a")).decode()

        text = copied("t")
        assert text == without_controls(HOSTILE, kept="\n\t")
        assert "\x1b" not in text
        assert copied("r") == "mine"
        row = json.loads(copied("j"))
        assert row.keys() == FIELDS.keys()
        assert (row["request"], row["status"], row["out"]) == ("mine", "running", 1)


def test_copying_nothing_says_so() -> None:
    source = ScriptedSource()
    Script(source)
    app = SeqtopApp(source)
    with play(app, (80, 24)) as pilot:
        pilot.press("y")
        assert notices(app) == ["No sequence is selected."]


def test_no_control_character_reaches_the_clipboard() -> None:
    state = EngineState()
    name = "r\x1b[201~\r\nrm -rf /\x9b"
    state.apply(engine_info())
    state.apply(msgspec.structs.replace(arrival(1), request_id=name))
    state.apply(
        step(
            0,
            sequences=[update(1, SequenceStatus.RUNNING, 3, text="a\n\tb\x1b[201~\r\nc")],
        )
    )
    texts = copies(state.requests[name], state.sequences[1], 0.0)
    assert texts["request id"] == "r␛[201~↵rm -rf /\N{REPLACEMENT CHARACTER}"
    assert texts["text"] == "a\n\tb␛[201~\nc"
    assert texts["row as JSON"].isprintable()
    assert name in json.loads(texts["row as JSON"]).values()
