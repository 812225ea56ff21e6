"""The app: quitting, the palette, hostile text, and terminals of any size."""

import random
import stat
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from seqtop.live.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.base_app import MAX_HEIGHT, MAX_WIDTH
from tests.support.piloting import notices, play, screen, until
from tests.support.scripted import HOSTILE, MIXED, Script, ScriptedSource, scene

FORBIDDEN = {chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]} | set(
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200d\u200e\u200f\ufe0f"
)
MORE = pytest.mark.release("more of the same kind")


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_quit(app: SeqtopApp, key: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert app._exit

    play(app, act)
    assert app.return_code == 0


def test_there_is_no_shell_to_go_back_to_without_a_terminal(app: SeqtopApp) -> None:
    """With one there is: see `test_terminal_restored.py`."""

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+z")
        await pilot.press("d")
        assert app.is_running

    play(app, act)


def test_the_palette_has_the_actions(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+p")
        await pilot.press(*"nothing", "escape", "escape")
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        for active in app.screen.active_bindings.values():
            if active.binding.id and active.binding.action != "quit":
                assert (active.binding.tooltip or active.binding.description) in commands
        assert "Keys" not in commands  # beside `Show all keys`
        await commands["Reverse the order"].callback()
        assert app.ui.view.sort.descending
        await commands["Freeze the display, or resume"].callback()
        assert app.ui.paused

    play(app, act)


def test_keys_pressed_before_there_is_a_screen_are_not_lost() -> None:
    class Hasty(SeqtopApp):
        def on_load(self) -> None:
            for _ in range(2):
                self.post_message(events.Key("down", None))

    source = ScriptedSource()
    scene(source)
    app = Hasty(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.ui.view.index(app.ui.cursor.seq_id) == 2)

    play(app, act)


def test_an_unknown_key_does_nothing(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        before = screen(app)
        await pilot.press("f8", "ctrl+y", "ü", "~")
        await pilot.pause()
        assert screen(app) == before

    play(app, act, (80, 24))


def test_nothing_hostile_reaches_the_terminal() -> None:
    source = ScriptedSource()
    info: dict[str, Any] = dict.fromkeys(
        ("engine_id", "model", "dtype", "device", "engine"), HOSTILE
    )
    script = Script(source, **info)
    names = [f"{HOSTILE}{index}" for index in range(3)]
    for name in names:
        script.arrive(name, HOSTILE + MIXED, pieces=[HOSTILE, MIXED])
    script.arrive("pair" + HOSTILE, n=2)
    script.step(prefill={names[0]: 40})
    script.step(prefill={names[1]: 40}, preempt={names[0]: names[1]})
    source.connection.endpoint = HOSTILE

    async def act(pilot: Pilot[int]) -> None:
        app = pilot.app
        assert isinstance(app, SeqtopApp)

        def look() -> None:
            for strip in app.screen._compositor.render_strips():
                for segment in strip:
                    assert not FORBIDDEN & set(segment.text), segment
                    segment.text.encode()
                assert strip.cell_length == app.size.width

        for detail in ("", HOSTILE, HOSTILE * 20):
            source.connect(ConnectionState.LOST if detail else ConnectionState.LIVE, detail)
            app.draw()
            await pilot.pause()
            look()
        source.connect(ConnectionState.LIVE)
        for key in ["enter", "down", "down", "down", "right_square_bracket",
                    "right_square_bracket", "x", "n", "space", "slash", "escape", "s"]:  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            look()

    for size in ((80, 24), (200, 60)):
        play(SeqtopApp(source, title=HOSTILE), act, size)


def test_a_terminal_resized_many_times(app: SeqtopApp) -> None:
    chance = random.Random(4)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        for _ in range(12):
            await pilot.resize_terminal(chance.randrange(10, 130), chance.randrange(3, 40))
        await pilot.resize_terminal(80, 24)
        await pilot.press("home")
        await pilot.pause()
        lines = screen(app).splitlines()
        assert lines[0].startswith(" demo")
        assert any(line.startswith("▌req-1 ") for line in lines)
        assert "q Quit" in lines[-1]

    play(app, act)


@pytest.mark.parametrize("size", [(20, 5), (1, 1), pytest.param((300, 8), marks=MORE)])
def test_odd_terminals_are_survived(app: SeqtopApp, size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for key in ("enter", "down", "G", "slash", "escape", "s", "escape", "n", "escape",
                    "question_mark", "escape", "d", "space"):  # fmt: skip
            await pilot.press(key)
        await pilot.pause()
        assert app.ui.paused
        await pilot.press("q")
        assert app._exit

    play(app, act, size)


def test_the_function_keys_are_those_of_htop(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for key, name in (("f1", "HelpScreen"), ("f2", "ColumnChooser"), ("f6", "SortChooser")):
            await pilot.press(key)
            assert type(app.screen).__name__ == name
            await pilot.press("escape")
        for key, label in (("f3", "Search"), ("f4", "Filter")):
            await pilot.press(key)
            await pilot.pause()
            assert label in screen(app).split()
            await pilot.press("escape")
        tree = app.ui.view.tree
        await pilot.press("f5")
        assert app.ui.view.tree != tree
        await pilot.press("f9")
        await pilot.pause()
        assert "Control is disabled" in screen(app) or "Abort " in screen(app)
        await pilot.press("escape", "f10")

    play(app, act, (100, 30))
    assert app.return_code == 0


def test_of_an_endless_terminal_a_part_is_drawn(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        largest = (MAX_WIDTH, MAX_HEIGHT)
        assert app.size == app.screen.size == largest
        assert "req-1" in screen(app)
        await pilot.resize_terminal(80, 24)
        assert app.size == app.screen.size == (80, 24)
        await pilot.resize_terminal(10**11, 65_535)
        assert app.size == app.screen.size == largest

    play(app, act, (65_535, 65_535))


def test_a_screenshot_is_saved_where_one_works(
    app: SeqtopApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def act(pilot: Pilot[int]) -> None:
        app.action_screenshot()
        await pilot.pause()
        [saved] = tmp_path.iterdir()
        assert notices(app) == [f"Saved the screen as {saved.name}."]
        assert "req-1" in saved.read_text()
        app.clear_notifications()
        target = tmp_path / "target"
        target.write_text("years of work")
        (tmp_path / "link.svg").symlink_to(target)
        app.action_screenshot("link.svg")
        await pilot.pause()
        assert target.read_text() == "years of work"
        assert stat.S_IMODE((tmp_path / "link.svg").lstat().st_mode) == 0o600
        app.clear_notifications()
        monkeypatch.setattr("tempfile.mkstemp", _full)
        app.action_screenshot()
        await pilot.pause()
        assert notices(app) == ["The screenshot was not saved: No space left on device."]

    play(app, act)


def _full(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")
