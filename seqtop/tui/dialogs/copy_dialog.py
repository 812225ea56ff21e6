"""A dialog that copies a part of the selected sequence to the terminal's clipboard.

The app sends the text in base64 (OSC 52), with pictures instead of control characters, as it may be
pasted into a terminal.
"""

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Label

from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import FIELDS
from seqtop.text.sanitize import safe_json, without_controls
from seqtop.tui.dialogs.dialog import Dialog


class CopyDialog(Dialog[str | None]):
    """Asks for the part to copy; returns a key of `copies`, or `None`."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("t", "take('text')", "Text"),
        Binding("r", "take('request id')", "Request id"),
        Binding("j", "take('row as JSON')", "Row as JSON"),
        Binding("escape,y,q", "dismiss", "Cancel"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Copy", classes="dialog-title")
            yield Label("t  text\nr  request id\nj  row, as JSON")
            yield Label("Esc cancels", classes="dialog-hint")

    def action_take(self, what: str) -> None:
        self.dismiss(what)


def copies(request: RequestState, sequence: SequenceState, now: float) -> dict[str, str]:
    """Returns the parts of a sequence that can be copied, by name."""
    row = {key: field.value(request, sequence, now) for key, field in FIELDS.items()}
    encodable = {key: _encodable(it) if isinstance(it, str) else it for key, it in row.items()}
    return {
        "text": without_controls(_encodable(sequence.text), kept="\n\t"),
        "request id": without_controls(_encodable(request.request_id)),
        "row as JSON": safe_json(msgspec.json.encode(encodable).decode()),
    }


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()
