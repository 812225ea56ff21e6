"""Groups of keys in the help. The first part of a binding's id names its group.

Textual's own binding groups would fold the keys of a group into one entry of the footer.
"""

from collections.abc import Sequence
from typing import TypeAlias

from textual.binding import Binding

Notes: TypeAlias = Sequence[tuple[str, str]]
"""Lines of the help below the keys: a term and its meaning."""

GROUPS = {
    "screen": "Screens",
    "move": "Move",
    "look": "View",
    "time": "Time travel",
    "find": "Sort and find",
    "engine": "Engine",
    "app": "seqtop",
}

APP_KEYS = [
    Binding("T", "turn_theme", "Dark or light", show=False, id="app.theme"),
    Binding("question_mark,f1", "help", "Help", id="app.help", tooltip="Show all keys"),
    Binding("q,f10", "quit", "Quit", id="app.quit"),
    Binding("ctrl+z", "suspend_process", "Back to the shell", show=False, id="app.suspend"),
    Binding("ctrl+q", "quit", "Quit", show=False, priority=True, id="app.leave"),
    Binding("ctrl+c", "quit", "Quit", show=False, priority=True, id="app.interrupt"),
]
"""Keys of every screen of every app, last in the footer and in the help."""


def unlisted(key: str, action: str, description: str, name: str) -> Binding:
    """Returns a binding with the id `name` that the help lists and the footer does not."""
    return Binding(key, action, description, show=False, id=name)


def group_of(binding: Binding) -> str:
    """Returns the title of a binding's group."""
    return GROUPS.get((binding.id or "").partition(".")[0], GROUPS["app"])
