"""A dialog for the number of a block."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Input, Label, Static

from seqtop.tui.dialogs.dialog import Dialog


class BlockPrompt(Dialog[int | None]):
    """Asks for a block number; returns it, or `None`.

    Args:
        num_blocks: The number of blocks of the device, which are numbered from 0.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self._range = f", 0 to {num_blocks - 1}" if num_blocks else ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(f"Go to block{self._range}", classes="dialog-title")
            yield Input(type="integer", max_length=15, compact=True, id="number")
            yield Static("", id="number-error", markup=False)
            yield Label("Enter confirms, Esc cancels", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(int(event.value))
        except ValueError:
            self.query_one("#number-error", Static).update("Type the number of a block.")
