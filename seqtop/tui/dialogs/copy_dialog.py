"""Copy something of the selected sequence to the clipboard of the user's terminal.

The app writes OSC 52 with the text in base64, so no control character in it reaches the terminal:
what is copied is the text as the engine sent it.
"""

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Label

from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import FIELDS
from seqtop.tui.dialogs.dialog import Dialog


class CopyDialog(Dialog[str | None]):
    """What to copy; answers a key of `copies`, or `None`."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("t", "take('text')", "Text"),
        Binding("r", "take('request id')", "Request id"),
        Binding("j", "take('row as JSON')", "Row as JSON"),
        Binding("escape,y,q", "dismiss", "Leave"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Copy", classes="dialog-title")
            yield Label("t  text\nr  request id\nj  row, as JSON")
            yield Label("Esc leaves", classes="dialog-hint")

    def action_take(self, what: str) -> None:
        self.dismiss(what)


def copies(request: RequestState, sequence: SequenceState, now: float) -> dict[str, str]:
    """All that can be copied of a sequence, as it is now."""
    row = {key: field.value(request, sequence, now) for key, field in FIELDS.items()}
    encodable = {key: _encodable(it) if isinstance(it, str) else it for key, it in row.items()}
    return {
        "text": _encodable(sequence.text),
        "request id": _encodable(request.request_id),
        "row as JSON": msgspec.json.encode(encodable).decode(),
    }


def _encodable(text: str) -> str:
    """Lone halves of surrogate pairs have no place in UTF-8."""
    return text.encode(errors="replace").decode()
