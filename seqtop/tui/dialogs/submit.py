"""A dialog that submits a prompt to the engine."""

from typing import NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label, Static, TextArea

from seqtop.sequence import SamplingParams
from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.prompts import Dialog


class Submission(NamedTuple):
    """A prompt with its sampling parameters."""

    prompt: str
    params: SamplingParams


class PromptArea(TextArea):
    """The text of a prompt, in which pasted line breaks stay."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("enter", "submit", "Submit", priority=True),
        Binding("ctrl+j", "break_line", "Line break", priority=True),
    ]

    class Submitted(Message):
        """The user has pressed Enter."""

    def action_submit(self) -> None:
        self.post_message(self.Submitted())

    def action_break_line(self) -> None:
        self.insert("\n")


class SubmitDialog(Dialog[Submission | None]):
    """Asks for prompt, length and temperature; returns a `Submission`, or `None`."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("New request", classes="dialog-title")
            yield PromptArea(placeholder="Once upon a time", id="submit-prompt")
            with Horizontal():
                yield Label("At most")
                yield Input("64", type="integer", compact=True, id="submit-max-tokens")
                yield Label("tokens")
            with Horizontal():
                yield Label("Temperature")
                yield Input("0.8", type="number", compact=True, id="submit-temperature")
            yield Static("", id="submit-error", markup=False)
            yield Label(
                "Enter submits, Ctrl+J breaks the line, Tab moves on, Esc cancels",
                classes="dialog-hint",
            )

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.query_one(PromptArea).cursor_blink = False

    def on_input_submitted(self) -> None:
        self._submit()

    def on_prompt_area_submitted(self) -> None:
        self._submit()

    def _submit(self) -> None:
        prompt = self.query_one(PromptArea).text
        if not prompt.strip():
            self._show_error("Type a prompt first.")
            return
        try:
            params = SamplingParams(
                max_tokens=int(self.query_one("#submit-max-tokens", Input).value),
                temperature=float(self.query_one("#submit-temperature", Input).value),
            )
        except ValueError as error:
            self._show_error(f"Invalid value: {error}.")
            return
        self.dismiss(Submission(prompt, params))

    def _show_error(self, text: str) -> None:
        self.query_one("#submit-error", Static).update(safe_line(text))
