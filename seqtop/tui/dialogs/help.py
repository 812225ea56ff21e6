"""The help: all keys, read from the bindings, and the filter language."""

from collections.abc import Iterable, Mapping

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Label, Static

from seqtop.state.fields import FIELDS, PREEMPTED, STATUS_WORDS
from seqtop.state.filter import UNITS
from seqtop.tui.dialogs.dialog import Dialog
from seqtop.tui.keymap import GROUPS, Notes, group_of

STATUSES = (*STATUS_WORDS.values(), PREEMPTED)
WORDS = (
    ("free and cached", "free blocks are empty; cached ones hold"),
    ("", "a prefix until they are evicted"),
    ("Cached > Prompt", "recomputed: output was in the cache, too"),
    ("!", "over its objective (--slo)"),
)
FILTER = (
    ("story", "in request id, prompt or output"),
    ("re:/req-[0-9]$/", "a regular expression in these"),
    ("status:waiting,swapped", "the field is one of these:"),
    ("", ", ".join(STATUSES[:4])),
    ("", ", ".join(STATUSES[4:])),
    ("prompt>1k  itl<=50ms", f"comparisons; units {' '.join(UNITS)}"),
    ("-status:stop  !preempt>0", "- or ! negates a term"),
)

ABOUT_SEQUENCES: Mapping[str, Notes] = {
    "Words": WORDS,
    "Filter": FILTER,
    "Fields": [(key, field.help) for key, field in FIELDS.items()],
}


NARROW = 60
"""Below this width the left column has `NARROW_COLUMN` cells instead of `COLUMN`."""
COLUMN, NARROW_COLUMN = 24, 9


class HelpScreen(Dialog[None]):
    """Lists the keys that work on the current screen, and notes."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape,q,question_mark", "dismiss", "Close"),
    ]

    def __init__(
        self, bindings: Mapping[str, ActiveBinding], notes: Mapping[str, Notes] | None = None
    ) -> None:
        super().__init__()
        self.entries = grouped(active.binding for active in bindings.values())
        """Keys and descriptions, by group."""
        self._notes = ABOUT_SEQUENCES if notes is None else notes

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Keys", classes="dialog-title")
            with VerticalScroll(id="help-scroll"):
                yield Static(self._content(), id="help-content")
            yield Label("Esc closes", id="help-hint", classes="dialog-hint")

    def on_mount(self) -> None:
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        for name in ("scroll_y", "virtual_size", "size"):
            self.watch(scroll, name, self._update_hint)

    def _update_hint(self) -> None:
        """Updates the hint at the bottom, which says whether there is more text below."""
        scroll = self.query_one(VerticalScroll)
        hint = "Esc closes" if scroll.scroll_y >= scroll.max_scroll_y else "Esc closes, ↓ for more"
        self.query_one("#help-hint", Label).update(hint)

    def _content(self) -> Content:
        column = COLUMN if self.app.size.width >= NARROW else NARROW_COLUMN

        def entry(left: str, right: str) -> Content:
            return Content.assemble((f"  {left:<{column - 1}} ", "bold"), right)

        lines: list[Content] = []
        for group, entries in self.entries.items():
            if not entries:
                continue
            lines.append(Content.styled(group, "bold $primary"))
            for keys, description in entries:
                shown = "  ".join(self.app.get_key_display(key) for key in keys)
                lines.append(entry(shown, description))
            lines.append(Content(""))
        for title, notes in self._notes.items():
            lines.append(Content.styled(title, "bold $primary"))
            lines += [entry(word, about) for word, about in notes]
            lines.append(Content(""))
        lines.pop()
        return Content("\n").join(lines)


def grouped(bindings: Iterable[Binding]) -> dict[str, list[tuple[list[Binding], str]]]:
    """Returns for each group its actions, each with all of its keys."""
    actions: dict[tuple[str, str], list[Binding]] = {}
    for binding in bindings:
        actions.setdefault((group_of(binding), binding.tooltip or binding.description), []).append(
            binding
        )
    listed: dict[str, list[tuple[list[Binding], str]]] = {}
    for group in GROUPS.values():
        listed[group] = [
            (keys, description) for (name, description), keys in actions.items() if name == group
        ]
    return listed
