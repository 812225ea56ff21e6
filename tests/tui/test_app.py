"""The app: quitting, the palette, hostile text, and terminals of any size."""

import random
import stat
from pathlib import Path
from typing import Any

import pytest
from textual import events

from seqtop.transport.connection import ConnectionState
from seqtop.tui import base_app
from seqtop.tui.app import SeqtopApp
from seqtop.tui.base_app import MAX_HEIGHT, MAX_WIDTH
from tests.support import settling
from tests.support.piloting import notices, play, rows, screen, until, words
from tests.support.scripted import HOSTILE, MIXED, Script, ScriptedSource, scene

FORBIDDEN = {chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]} | set(
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200d\u200e\u200f\ufe0f"
)
MORE = pytest.mark.release("more of the same kind")


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_quit(app: SeqtopApp, key: str) -> None:
    with play(app) as pilot:
        pilot.press(key)
        assert app._exit
    assert app.return_code == 0


def test_there_is_no_shell_to_go_back_to_without_a_terminal(app: SeqtopApp) -> None:
    """With one there is: see `test_terminal_restored.py`."""
    with play(app) as pilot:
        pilot.press("ctrl+z")
        pilot.press("d")
        assert app.is_running


def test_the_palette_has_the_actions(app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("ctrl+p")
        until(pilot, lambda: 0 < words(app).find("Screens · 1") < words(app).find("Move · ↑"))
        pilot.press(*"nothing", "escape", "escape")
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        for active in app.screen.active_bindings.values():
            if active.binding.id and active.binding.action != "quit":
                assert (active.binding.tooltip or active.binding.description) in commands
        assert "Keys" not in commands  # beside `Show all keys`
        pilot.run(commands["Reverse the order"].callback())
        assert app.ui.view.sort.descending
        pilot.run(commands["Freeze the display, or resume"].callback())
        assert app.ui.paused


def test_keys_pressed_before_there_is_a_screen_are_not_lost() -> None:
    class Hasty(SeqtopApp):
        def on_load(self) -> None:
            for _ in range(2):
                self.post_message(events.Key("down", None))

    source = ScriptedSource()
    scene(source)
    app = Hasty(source, clock=lambda: 0.0)
    with play(app) as pilot:
        until(pilot, lambda: app.ui.view.index(app.ui.cursor.seq_id) == 2)


def test_an_unknown_key_does_nothing(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        before = screen(app)
        pilot.press("f8", "ctrl+y", "ü", "~")
        assert screen(app) == before


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

    def look(app: SeqtopApp) -> None:
        for strip in settling.render(app):
            for segment in strip:
                assert not FORBIDDEN & set(segment.text), segment
                segment.text.encode()
            assert strip.cell_length == app.size.width

    for size in ((80, 24), (200, 60)):
        app = SeqtopApp(source, title=HOSTILE)
        with play(app, size) as pilot:
            for detail in ("", HOSTILE, HOSTILE * 20):
                source.connect(ConnectionState.LOST if detail else ConnectionState.LIVE, detail)
                pilot.draw()
                look(app)
            source.connect(ConnectionState.LIVE)
            keys = "enter down down down o o x n space slash"
            for key in [*keys.split(), "escape", "s"]:
                pilot.press(key)
                look(app)


def test_a_terminal_resized_many_times(app: SeqtopApp) -> None:
    chance = random.Random(4)
    with play(app) as pilot:
        pilot.press("enter")
        for _ in range(12):
            pilot.resize_terminal(chance.randrange(10, 130), chance.randrange(3, 40))
        pilot.resize_terminal(80, 24)
        pilot.press("home")
        lines = rows(app)
        assert lines[0].startswith(" demo")
        assert any(line.startswith("▌req-1 ") for line in lines)
        assert "q Quit" in lines[-1]


@pytest.mark.parametrize("size", [(20, 5), (1, 1), pytest.param((300, 8), marks=MORE)])
def test_odd_terminals_are_survived(app: SeqtopApp, size: tuple[int, int]) -> None:
    with play(app, size) as pilot:
        for key in ("enter", "down", "end", "slash", "escape", "s", "escape", "n", "escape",
                    "question_mark", "escape", "d", "space"):  # fmt: skip
            pilot.press(key)
        assert app.ui.paused
        pilot.press("q")
        assert app._exit


def test_the_function_keys_are_those_of_htop(app: SeqtopApp) -> None:
    with play(app, (100, 30)) as pilot:
        for key, name in (("f1", "HelpScreen"), ("f2", "ColumnChooser"), ("f6", "SortChooser")):
            pilot.press(key)
            assert type(app.screen).__name__ == name
            pilot.press("escape")
        for key, label in (("f3", "Search"), ("f4", "Filter")):
            pilot.press(key)
            assert label in screen(app).split()
            pilot.press("escape")
        tree = app.ui.view.tree
        pilot.press("f5")
        assert app.ui.view.tree != tree
        pilot.press("f9")
        assert "Control is disabled" in screen(app) or "Abort " in screen(app)
        pilot.press("escape", "f10")
    assert app.return_code == 0


@pytest.mark.parametrize("largest", [(300, 100), pytest.param((MAX_WIDTH, MAX_HEIGHT), marks=MORE)])
def test_of_an_endless_terminal_a_part_is_drawn(
    app: SeqtopApp, monkeypatch: pytest.MonkeyPatch, largest: tuple[int, int]
) -> None:
    monkeypatch.setattr(base_app, "MAX_WIDTH", largest[0])
    monkeypatch.setattr(base_app, "MAX_HEIGHT", largest[1])
    with play(app, (65_535, 65_535)) as pilot:
        assert app.size == app.screen.size == largest
        assert "req-1" in screen(app)
        pilot.resize_terminal(80, 24)
        assert app.size == app.screen.size == (80, 24)
        pilot.resize_terminal(10**11, 65_535)
        assert app.size == app.screen.size == largest


def test_a_screenshot_is_saved_where_one_works(
    app: SeqtopApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with play(app) as pilot:
        app.action_screenshot()
        pilot.pause()
        [saved] = tmp_path.iterdir()
        assert notices(app) == [f"Saved the screen as {saved.name}."]
        assert "req-1" in saved.read_text()
        app.clear_notifications()
        target = tmp_path / "target"
        target.write_text("years of work")
        (tmp_path / "link.svg").symlink_to(target)
        app.action_screenshot("link.svg")
        pilot.pause()
        assert target.read_text() == "years of work"
        assert stat.S_IMODE((tmp_path / "link.svg").lstat().st_mode) == 0o600
        app.clear_notifications()
        monkeypatch.setattr("tempfile.mkstemp", _full)
        app.action_screenshot()
        pilot.pause()
        assert notices(app) == ["The screenshot was not saved: No space left on device."]


def _full(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_notice_covers_nothing(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        before = screen(app).splitlines()
        app._show_notice("Something has happened.")
        until(pilot, lambda: "Something has happened." in screen(app))
        after = screen(app).splitlines()
        assert after[-2].split() == ["▌", "Something", "has", "happened."]
        assert after[-1] == before[-1], "the keys"
        assert after[-3] == before[-2], "the lower border of the table, with its keys"
