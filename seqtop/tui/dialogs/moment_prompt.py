"""A dialog for the moment to go to."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, Static

from seqtop.tui.dialogs.dialog import Dialog
from seqtop.tui.moment_input import EXAMPLES, TypedMoment, parse


class MomentPrompt(Dialog[TypedMoment | None]):
    """Asks for a step or a time; returns it, or `None`."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Leave"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Go to a step or a time", classes="dialog-title")
            yield Input(
                restrict=r"[0-9,.:hms+\- ]*", max_length=20, compact=True, id="moment-input"
            )
            yield Static("", id="moment-error", markup=False)
            for example, about in EXAMPLES:
                yield Label(Content.assemble((f"{example:<10}", "bold"), about))
            yield Label("Enter goes, Esc leaves", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(parse(event.value))
        except ValueError as error:
            self.query_one("#moment-error", Static).update(str(error))
