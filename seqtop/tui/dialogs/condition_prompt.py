"""A dialog for a condition to go to."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, Static

from seqtop.state.condition import ENGINE_FIELDS, parse_condition
from seqtop.state.filter import FilterError
from seqtop.tui.dialogs.prompts import Dialog

EXAMPLES = (
    ("kv>95%", "the KV pool is almost full"),
    ("waiting>=10", "many sequences wait"),
    ("status:preempt req-7", "this request is preempted"),
    ("age>2s kv>90%", "all words have to hold"),
)
"""Examples of conditions, and their meanings."""


class ConditionPrompt(Dialog[str | None]):
    """Asks for a condition; returns it as typed, or `None`.

    Args:
        condition: The last condition.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, condition: str) -> None:
        super().__init__()
        self._condition = condition

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Go to where a condition begins to hold", classes="dialog-title")
            yield Input(self._condition, max_length=200, compact=True, id="condition-input")
            yield Static("", id="condition-error", markup=False)
            for example, about in EXAMPLES:
                yield Label(Content.assemble((f"{example:<22}", "bold"), about))
            yield Label(
                f"Of the engine: {', '.join(ENGINE_FIELDS)}; of sequences: the filter's words"
            )
            yield Label("Enter searches, then U on and u back; Esc cancels", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(parse_condition(event.value).source)
        except FilterError as error:
            text = str(error)
            self.query_one("#condition-error", Static).update(f"{text[:1].upper()}{text[1:]}.")
