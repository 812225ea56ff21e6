"""The sequences screen: its panes, its actions and its sizes."""

from pathlib import Path

import pytest
from textual.pilot import Pilot

from seqtop.history.playback import Playback
from seqtop.live.connection import ConnectionState, ControlError
from seqtop.state.fields import DEFAULT_COLUMNS
from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.sequences.table import Rows, SequenceTable
from tests.support.piloting import notices, play, screen, selected, until
from tests.support.scripted import ScriptedSource, scene


@pytest.mark.parametrize("keys", ["d l", "l d", "d l space", "d l plus plus plus plus"])
@pytest.mark.parametrize("size", [(80, 24), (100, 20)], ids="{0[0]}x{0[1]}".format)
def test_both_panes_leave_the_table_its_rows(
    app: SeqtopApp, keys: str, size: tuple[int, int]
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("G", *keys.split())
        rows, detail = app.screen.query_one(Rows), app.screen.query_one(Detail)
        await until(pilot, lambda: rows.size.height >= 3)
        await pilot.pause()
        assert rows.size.height >= 3
        assert detail.region.bottom <= app.screen.query_one("#latency").region.y
        row = rows.cursor_row
        assert row is not None
        assert rows.scroll_offset.y <= row < rows.scroll_offset.y + rows.size.height
        assert "▌" in screen(app)
        assert selected(app) in screen(app)

    play(app, act, size)


def test_sort(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        keys = ["", *DEFAULT_COLUMNS]
        for index in range(1, len(keys) + 1):
            await pilot.press("greater_than_sign")
            assert app.ui.view.sort.key == keys[index % len(keys)]
        await pilot.press("less_than_sign")
        assert app.ui.view.sort.key == "text"
        await pilot.press("r")
        assert app.ui.view.sort == Sort("text", descending=True)
        assert "Text▼" in screen(app)
        await pilot.press("r")
        assert "Text▲" in screen(app)

    play(app, act)


def test_an_engine_that_refuses_is_quoted(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        source.error = ControlError("the queue is \x1b[31m[b]full[/b]")
        await pilot.press("n")
        await pilot.press(*"Hi", "enter")
        await until(pilot, lambda: "Not submitted: the queue is ␛[31m[b]full[/b]." in notices(app))
        await pilot.press("x")
        await pilot.press("y")
        await until(pilot, lambda: "[b]full[/b]" in screen(app))

    play(app, act)


def test_an_engine_that_is_only_watched_says_so() -> None:
    source = ScriptedSource()
    scene(source, control=False)
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "n New" not in screen(app) and "space Pause" in screen(app))
        assert "x Abort" not in screen(app)
        await pilot.press("n", "x")
        assert isinstance(app.screen, SequencesScreen)
        assert notices(app) == [
            "Control is disabled (start the engine with --control).",
            "Control is disabled (start the engine with --control).",
        ]
        source.connect(ConnectionState.LOST)
        await pilot.press("n")
        assert "it is not connected" in notices(app)[-1]

    play(app, act)


def test_a_recording_has_no_engine_to_control() -> None:
    source = ScriptedSource()
    scene(source, hostile="")
    app = SeqtopApp(Playback(source.history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("right", "n", "x")
        assert notices(app)[:1] == ["Cannot submit prompts to a recording."]
        assert "n New" not in screen(app)
        assert "x Abort" not in screen(app)

    play(app, act)


def test_no_key_leaves_a_broken_screen(
    app: SeqtopApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one of the keys writes a file

    async def act(pilot: Pilot[int]) -> None:
        keys = [
            key
            for key, active in app.screen.active_bindings.items()
            if active.binding.action not in {"quit", "app.quit"}
            and "go_to(" not in active.binding.action
        ]
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            assert screen(app).strip()
            await pilot.press("escape")
            assert isinstance(app.screen, SequencesScreen), key

    play(app, act, (80, 24))


def test_the_rows_of_a_lost_engine_age(source: ScriptedSource) -> None:
    clock = [100.0]
    app = SeqtopApp(source, clock=lambda: clock[0])

    async def act(pilot: Pilot[int]) -> None:
        table = app.screen.query_one(SequenceTable)
        assert not table.has_class("-stale")
        (row,) = (line for line in screen(app).splitlines() if "req-1 " in line)
        source.connect(ConnectionState.LOST)
        clock[0] += 754
        app.draw()
        await until(pilot, lambda: "12m 34s" in screen(app))
        (aged,) = (line for line in screen(app).splitlines() if "req-1 " in line)
        assert aged != row
        assert table.rows.styles.text_opacity < 1
        source.connect(ConnectionState.LIVE)
        app.draw()
        await until(pilot, lambda: not table.has_class("-stale"))

    play(app, act, (200, 60))


def test_an_engine_that_goes_while_one_looks(source: ScriptedSource) -> None:
    app = SeqtopApp(source, clock=lambda: 0.0)
    source.after_event = app.ui.update

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "l", "down", "slash", *"req")
        source.connect(ConnectionState.LOST)
        app.draw()
        await pilot.pause()
        assert "✗ LOST" in screen(app)
        await pilot.press("escape", "x", "n")
        assert isinstance(app.screen, SequencesScreen)
        assert "it is not connected" in screen(app)

    play(app, act, (80, 24))


def test_forty_by_ten_is_readable(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        lines = screen(app).splitlines()
        assert lines[0].startswith(" demo")
        assert lines[0].rstrip().endswith("● LIVE")
        assert "8 running" in lines[1]
        assert lines[3].startswith("▌req-1      ● running ")
        assert app.screen.query_one(Rows).size.height >= 6
        await pilot.press("enter")
        await pilot.pause()
        lines = screen(app).splitlines()
        assert lines[2].startswith("▌req-1  ")
        assert lines[3].startswith(" req-1  ● running")
        assert "Decoding: 41 of at most 64 tokens so" in lines[4]
        await pilot.press("j")
        await pilot.pause()
        assert screen(app).splitlines()[2].startswith("▌req-2  ")
        await pilot.press("d", "k")
        await pilot.pause()
        assert screen(app).splitlines()[3].startswith("▌req-1  ")

    play(app, act, (40, 10))
