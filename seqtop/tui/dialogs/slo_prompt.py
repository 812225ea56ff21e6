"""A dialog for the latency objectives."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, Static

from seqtop.state.slo import FIGURES, Slo, SloError, parse
from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.prompts import Dialog

EXAMPLES = (
    ("ttft=500ms itl=50ms", "first token within 0.5 s, 50 ms between two tokens"),
    ("e2e=10", "the whole request within 10 s"),
)
"""Examples of objectives, and their meanings."""


class SloPrompt(Dialog[Slo | None]):
    """Asks for latency objectives; returns them, none for an empty text, or `None`.

    Args:
        slo: The objectives so far.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, slo: Slo) -> None:
        super().__init__()
        self._slo = slo

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Limits for latencies (SLO)", classes="dialog-title")
            yield Input(self._slo.source, max_length=200, compact=True, id="slo-input")
            yield Static("", id="slo-error", markup=False)
            for example, about in EXAMPLES:
                yield Label(Content.assemble((f"{example:<20}", "bold"), about))
            yield Label(f"Seconds for {', '.join(FIGURES)}; an empty text for no limits")
            yield Label("Enter sets them, Esc cancels", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(parse(event.value))
        except SloError as error:
            self.query_one("#slo-error", Static).update(safe_line(f"{error}."))
