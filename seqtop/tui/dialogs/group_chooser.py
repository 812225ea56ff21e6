"""A dialog for the key that the rows are grouped by."""

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from seqtop.state.groups import HELP, GroupKeyError, name_by
from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.prompts import Dialog, entry

EXAMPLE = r"re:/user-(\d+)/"
"""An expression to group by."""
NOT_GROUPED = ("none", "a row for each sequence")


class GroupChooser(Dialog[str | None]):
    """Lists what rows can be grouped by; returns the chosen key, empty for none, or `None`.

    A letter moves the cursor to the next key that begins with it. `/` goes to a field for an
    expression.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, by: str) -> None:
        super().__init__()
        self._by = by
        self._keys = [*HELP, ""]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Group by", classes="dialog-title")
            yield OptionList(
                *(self._option(key, *_words(key)) for key in self._keys), id="group-options"
            )
            yield Input(
                self._by if self._by.startswith("re:") else "",
                placeholder=f"{EXAMPLE}  what an expression finds in the id",
                compact=True,
            )
            yield Label("Enter applies, / types an expression, Esc cancels", classes="dialog-hint")

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = len(self._keys) - 1 if self._by else 0  # Enter ends it again
        options.focus()

    def on_key(self, event: events.Key) -> None:
        if isinstance(self.focused, Input):
            return
        letter = (event.character or "").lower()
        if letter == "/":
            event.stop()
            self.query_one(Input).focus()
        elif letter.isalpha():
            event.stop()
            options = self.query_one(OptionList)
            names = [_words(key)[0] for key in self._keys]
            here = (options.highlighted or 0) + 1
            for index in (*range(here, len(names)), *range(here)):
                if names[index].startswith(letter):
                    options.highlighted = index
                    return

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        text = event.value.strip()
        key = text if text.startswith("re:") or text in HELP or not text else f"re:/{text}/"
        try:
            if key:
                name_by(key)
        except GroupKeyError as error:
            self.query_one(".dialog-hint", Label).update(safe_line(f"{error}"))
            return
        self.dismiss(key)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._keys[event.option_index])

    def _option(self, key: str, name: str, about: str) -> Option:
        mark = "▸" if key == self._by else " "
        return Option(entry(f"{mark} {name}", about, 10, self.list_width))


def _words(key: str) -> tuple[str, str]:
    """Returns the name of a key, and what it is."""
    return (key, HELP[key]) if key else NOT_GROUPED
