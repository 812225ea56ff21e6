"""Dialogs to type into lose nothing of what was typed before they had the focus."""

from textual import events
from textual.widgets import Input

from seqtop.tui.screens.dialog import Answer, Dialog


class TypedDialog(Dialog[Answer]):
    """A dialog with an `Input`, which gets what arrives while nothing has the focus yet."""

    def on_key(self, event: events.Key) -> None:
        if event.character is not None and event.is_printable:
            event.stop()
            field = self.focused if isinstance(self.focused, Input) else self.query(Input).first()
            field.insert_text_at_cursor(event.character)
