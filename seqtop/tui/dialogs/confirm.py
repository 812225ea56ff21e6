"""A dialog that confirms an action that cannot be undone."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Label

from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.dialog import Dialog


class Confirm(Dialog[bool]):
    """Asks a question; returns whether the answer is yes."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = safe_line(question)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self._question, classes="dialog-title", markup=False)
            yield Label("y  yes      n  no", classes="dialog-hint")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
