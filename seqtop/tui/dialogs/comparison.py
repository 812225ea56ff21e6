"""The differences between two moments."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Label, Static

from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.dialog import Dialog

_OTHER_LINES = 6
"""The border, the title and the hint, with the margins between."""


class ComparisonDialog(Dialog[None]):
    """Shows what differs between the marked moment and the one on display.

    Args:
        lines: The lines of `seqtop.state.compare.describe`.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape,q,B,enter", "dismiss", "Close"),
    ]

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__()
        self._text = "\n".join(map(safe_line, lines))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.styles.max_height = len(self._text.splitlines()) + _OTHER_LINES
            yield Label("What differs between two moments", classes="dialog-title")
            with VerticalScroll(id="comparison-scroll"):
                yield Static(self._text, id="comparison", markup=False)
            yield Label("Esc closes, ↑ ↓ scroll", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
