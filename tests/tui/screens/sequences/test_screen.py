"""The sequences screen: its panes, its actions and its sizes."""

from pathlib import Path

import pytest

from seqtop.live.playback import Playback
from seqtop.state.fields import DEFAULT_COLUMNS
from seqtop.state.ordering import Sort
from seqtop.transport.connection import ConnectionState, ControlError
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.sequences.table import Rows, SequenceTable
from tests.support.piloting import notices, play, rows, screen, selected, until
from tests.support.scripted import ScriptedSource, scene


@pytest.mark.parametrize("size", [(80, 24), (100, 20)], ids="{0[0]}x{0[1]}".format)
def test_both_panes_leave_the_table_its_rows(app: SeqtopApp, size: tuple[int, int]) -> None:
    with play(app, size) as pilot:
        pilot.press("end")
        rows, detail = app.screen.query_one(Rows), app.screen.query_one(Detail)
        for keys in (
            "d l",
            "space",
            "space plus plus plus plus",
            "minus minus minus minus d l l d",
        ):
            pilot.press(*keys.split())
            until(pilot, lambda: rows.size.height >= 3)
            pilot.pause()
            assert detail.display, keys
            assert rows.size.height >= 3, keys
            assert detail.region.bottom <= app.screen.query_one("#latency").region.y, keys
            row = rows.cursor_row
            assert row is not None
            assert rows.scroll_offset.y <= row < rows.scroll_offset.y + rows.size.height, keys
            assert "▌" in screen(app)
            assert selected(app) in screen(app)


def test_sort(app: SeqtopApp) -> None:
    with play(app) as pilot:
        keys = ["", *DEFAULT_COLUMNS]
        for index in range(1, len(keys) + 1):
            pilot.press("greater_than_sign")
            assert app.ui.view.sort.key == keys[index % len(keys)]
        pilot.press("less_than_sign")
        assert app.ui.view.sort.key == "text"
        pilot.press("r")
        assert app.ui.view.sort == Sort("text", descending=True)
        assert "Text▼" in screen(app)
        pilot.press("r")
        assert "Text▲" in screen(app)


def test_an_engine_that_refuses_is_quoted(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app) as pilot:
        source.error = ControlError("the queue is \x1b[31m[b]full[/b]")
        pilot.press("n")
        pilot.press(*"Hi", "enter")
        until(pilot, lambda: "Not submitted: the queue is ␛[31m[b]full[/b]." in notices(app))
        pilot.press("x")
        pilot.press("y")
        until(pilot, lambda: "[b]full[/b]" in screen(app))


def test_an_engine_that_is_only_watched_says_so() -> None:
    source = ScriptedSource()
    scene(source, control=False)
    app = SeqtopApp(source)
    with play(app) as pilot:
        until(pilot, lambda: "n New" not in screen(app) and "space Pause" in screen(app))
        assert "x Abort" not in screen(app)
        for key in ("n", "x"):
            pilot.press(key)
            assert isinstance(app.screen, SequencesScreen)
            assert notices(app) == ["Control is disabled (start the engine with --control)."]
            app.clear_notifications()
        source.connect(ConnectionState.LOST)
        pilot.press("n")
        assert "it is not connected" in notices(app)[-1]


def test_a_recording_has_no_engine_to_control() -> None:
    source = ScriptedSource()
    scene(source, hostile="")
    app = SeqtopApp(Playback(source.history, "run.seqtop", paused=True), clock=lambda: 0.0)
    with play(app) as pilot:
        for key, what in (("n", "submit prompts to"), ("x", "abort requests of")):
            pilot.press("right", key)
            assert notices(app) == [f"Cannot {what} a recording."]
        app.clear_notifications()
        pilot.pause()
        assert "n New" not in screen(app)
        assert "x Abort" not in screen(app)


def test_no_key_leaves_a_broken_screen(
    app: SeqtopApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one of the keys writes a file
    with play(app, (80, 24)) as pilot:
        keys = {  # one for each action
            active.binding.action: key
            for key, active in app.screen.active_bindings.items()
            if active.binding.action not in {"quit", "app.quit"}
            and "go_to(" not in active.binding.action
        }
        for key in keys.values():
            pilot.press(key)
            assert screen(app).strip()
            pilot.press("escape")
            assert isinstance(app.screen, SequencesScreen), key


def test_the_rows_of_a_lost_engine_age(source: ScriptedSource) -> None:
    clock = [100.0]
    app = SeqtopApp(source, clock=lambda: clock[0])
    with play(app, (200, 60)) as pilot:
        table = app.screen.query_one(SequenceTable)
        assert not table.has_class("-stale")
        (row,) = (line for line in rows(app) if line[1:].startswith("req-1 "))
        source.connect(ConnectionState.LOST)
        clock[0] += 754
        app.draw()
        until(pilot, lambda: "12m 34s" in screen(app))
        (aged,) = (line for line in rows(app) if line[1:].startswith("req-1 "))
        assert aged != row
        assert table.rows.styles.text_opacity < 1
        source.connect(ConnectionState.LIVE)
        app.draw()
        until(pilot, lambda: not table.has_class("-stale"))


def test_an_engine_that_goes_while_one_looks(source: ScriptedSource) -> None:
    app = SeqtopApp(source, clock=lambda: 0.0)
    source.after_event = app.ui.update
    with play(app, (80, 24)) as pilot:
        pilot.press("enter", "l", "down", "slash", *"req")
        source.connect(ConnectionState.LOST)
        pilot.draw()
        assert "✗ LOST" in screen(app)
        pilot.press("escape", "x", "n")
        assert isinstance(app.screen, SequencesScreen)
        assert "it is not connected" in screen(app)


def test_forty_by_ten_is_readable(app: SeqtopApp) -> None:
    with play(app, (40, 10)) as pilot:
        lines = screen(app).splitlines()
        assert lines[0].startswith(" demo")
        assert lines[0].rstrip().endswith("● LIVE")
        assert "8 running" in lines[1]
        assert lines[3].startswith("▌req-1      ● running ")
        assert app.screen.query_one(Rows).size.height >= 6
        pilot.press("enter")
        lines = screen(app).splitlines()
        assert lines[2].startswith("▌req-1  ")
        assert lines[3].startswith(" req-1  ● running")
        assert "Decoding: 41 of at most 64 tokens so" in lines[4]
        pilot.press("j")
        assert screen(app).splitlines()[2].startswith("▌req-2  ")
        pilot.press("d", "k")
        assert screen(app).splitlines()[3].startswith("▌req-1  ")
