"""On every screen: the help lists every key, and every key it lists is pressed in a test."""

import ast
import functools
from pathlib import Path
from typing import Any

from textual.binding import ActiveBinding

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.help import HelpScreen
from seqtop.tui.rendering.list_view import ListView
from seqtop.tui.screens.base import TabbedScreen
from tests.support.every_screen import NAMES, leading_to, several
from tests.support.piloting import Pilot, play, until

TESTS = {
    "sequences": (
        "screens/sequences/test_*.py",
        "screens/test_sequence_rows.py",
        "chrome/test_filter_bar.py",
        "chrome/test_latency_panel.py",
        "dialogs/test_column_chooser.py",
        "dialogs/test_help.py",
        "dialogs/test_prompts.py",
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
    screen: Any = app.screen
    return isinstance(screen, TabbedScreen) and screen.TAB.name == name


@functools.cache
def pressed(path: Path) -> set[str]:
    """Keys that a file of tests presses, or runs through to press."""
    keys: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        wanted: list[ast.AST] = []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in {"press", "parametrize", "burst"}:
                wanted = [*node.args]
            wanted += [keyword.value for keyword in node.keywords if keyword.arg == "press"]
        elif isinstance(node, ast.For):
            wanted = [node.iter]
        elif isinstance(node, ast.Assign):
            wanted = [node.value]
        for part in wanted:
            for inner in ast.walk(part):
                if isinstance(inner, ast.Starred) and isinstance(inner.value, ast.Constant):
                    keys.update(str(inner.value.value))
                elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    keys.add(inner.value)
    return keys


def assert_help_lists_all_keys(app: SeqtopApp, pilot: Pilot, name: str) -> dict[str, ActiveBinding]:
    """Go to a screen, and look at its help; the keys that are active on it."""
    pilot.press(leading_to(name))
    until(pilot, lambda: is_at(app, name))
    until(pilot, lambda: bool(app.focused), "on_mount of the screen focuses no widget")
    active = dict(app.screen.active_bindings)
    bound = {
        key: active_binding.binding.tooltip or active_binding.binding.description
        for key, active_binding in active.items()
    }
    pilot.press("question_mark")
    until(pilot, lambda: isinstance(app.screen, HelpScreen))
    help_screen: Any = app.screen
    entries = [
        (binding, description)
        for group in help_screen.entries.values()
        for bindings, description in group
        for binding in bindings
    ]
    assert {binding.key: description for binding, description in entries} == bound
    text = " ".join(str(help_screen.query_one("#help-content").render()).split())
    for binding, description in entries:
        assert description, binding
        assert description in text
        assert app.get_key_display(binding) in text
    for word in ("Focus Next", "Focus Previous", "super+c"):
        assert word not in text
    pilot.press("escape")
    assert is_at(app, name)
    return active


def test_every_key_of_a_screen_is_in_its_help_and_pressed_in_a_test() -> None:
    app = several()
    with play(app, (80, 30)) as pilot:
        active = {name: assert_help_lists_all_keys(app, pilot, name) for name in NAMES}
    for name in NAMES:
        assert_tests_press(active[name], name)


def assert_tests_press(active: dict[str, ActiveBinding], name: str) -> None:
    assert len(active) > 20
    here = Path(__file__).parent
    parts = TESTS.get(name, (f"screens/{name}/test_*.py",))
    of_screen = {key for part in parts for path in here.glob(part) for key in pressed(path)}
    anywhere = {key for path in here.rglob("test_*.py") for key in pressed(path)}
    anywhere |= {leading_to(screen_name) for screen_name in NAMES}  # as this test does
    for key, active_binding in active.items():
        if key not in TEXTUALS:
            own = not isinstance(active_binding.node, SeqtopApp)
            shared = isinstance(active_binding.node, ListView) or key in {
                "tab",
                "shift+tab",
                "escape",
            }
            where = of_screen if own and not shared else anywhere
            assert key in where, (
                f"no test in {' '.join(parts)} presses {key}: {active_binding.binding}"
            )
