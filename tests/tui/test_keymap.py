"""On every screen: the help lists every key, and every key it lists is pressed in a test."""

import ast
from pathlib import Path

import pytest
from textual.binding import ActiveBinding
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.help import HelpScreen
from seqtop.tui.rendering.list_view import ListView
from seqtop.tui.screens.base import TabbedScreen
from tests.support.every_screen import NAMES, leading_to, several
from tests.support.piloting import play, until

TESTS = {
    "sequences": (
        "screens/sequences/test_*.py",
        "chrome/test_filter_bar.py",
        "chrome/test_latency_panel.py",
        "dialogs/test_column_chooser.py",
        "dialogs/test_confirm.py",
        "dialogs/test_copy_dialog.py",
        "dialogs/test_help.py",
        "dialogs/test_sort_chooser.py",
        "dialogs/test_submit.py",
        "test_app.py",
        "test_time_travel.py",
    ),
}
"""The tests of a screen, where its own keys are pressed, if not only those in its folder."""
TEXTUALS = {"super+c", "ctrl+p"}
"""Keys of Textual's own, which are its business to test, but not to be kept from a reader."""


def is_at(app: SeqtopApp, name: str) -> bool:
    screen = app.screen
    return isinstance(screen, TabbedScreen) and screen.TAB.name == name and bool(app.focused)


def bindings(name: str) -> dict[str, ActiveBinding]:
    """What is bound on a screen, by key."""
    app = several()
    found: dict[str, ActiveBinding] = {}

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(leading_to(name))
        await until(pilot, lambda: is_at(app, name))
        found.update(app.screen.active_bindings)

    play(app, act)
    return found


def pressed(path: Path) -> set[str]:
    """Keys that a file of tests presses, or runs through to press."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        wanted: list[ast.AST] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in {"press", "parametrize", "burst"}:
                wanted = [*node.args]
            wanted += [each.value for each in node.keywords if each.arg == "press"]
        elif isinstance(node, ast.For):
            wanted = [node.iter]
        elif isinstance(node, ast.Assign):
            wanted = [node.value]
        for part in wanted:
            for each in ast.walk(part):
                if isinstance(each, ast.Starred) and isinstance(each.value, ast.Constant):
                    found.update(str(each.value.value))
                elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                    found.add(each.value)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_pressed_in_a_test(name: str) -> None:
    here = Path(__file__).parent
    parts = TESTS.get(name, (f"screens/{name}/test_*.py",))
    of_screen = {key for part in parts for path in here.glob(part) for key in pressed(path)}
    anywhere = {key for path in here.rglob("test_*.py") for key in pressed(path)}
    anywhere |= {leading_to(each) for each in NAMES}  # as this file does
    bound = bindings(name)
    assert len(bound) > 20
    for key, active in bound.items():
        if key not in TEXTUALS:
            own = not isinstance(active.node, SeqtopApp)
            shared = isinstance(active.node, ListView) or key in {"tab", "shift+tab", "escape"}
            assert key in (of_screen if own and not shared else anywhere), (key, active.binding)


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_every_screen_lists_every_key(name: str) -> None:
    app = several()

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(leading_to(name))
        await until(pilot, lambda: is_at(app, name))
        bound = {
            key: active.binding.tooltip or active.binding.description
            for key, active in app.screen.active_bindings.items()
        }
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        assert isinstance(app.screen, HelpScreen)
        entries = [
            (binding, description)
            for group in app.screen.entries.values()
            for bindings, description in group
            for binding in bindings
        ]
        assert {binding.key: description for binding, description in entries} == bound
        text = str(app.screen.query_one("#help-content").render())
        for binding, description in entries:
            assert description, binding
            assert description in text
            assert app.get_key_display(binding) in text
        for word in ("Focus Next", "Focus Previous", "super+c"):
            assert word not in text

    play(app, act)
