"""A dialog for the latency objectives: who misses them, why, and the load that holds them."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Label, Static

from seqtop.history.timeline import Timeline
from seqtop.state import EngineState, slo_misses
from seqtop.state.slo import FIGURES, Slo, SloError, parse
from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.replays import ReplayDialog, recording_of
from seqtop.whatif import advice_report
from seqtop.whatif.advise import advise
from seqtop.whatif.driver import ShowProgress
from seqtop.whatif.predict import WHATIF_ERRORS, Question

EXAMPLES = (
    ("ttft=500ms itl=50ms", "first token within 0.5 s, 50 ms between two tokens"),
    ("e2e=10", "the whole request within 10 s"),
)
"""Examples of objectives, and their meanings."""


class SloPrompt(ReplayDialog):
    """Asks for latency objectives, and shows who misses them and by which cause.

    Args:
        slo: The objectives so far.
        history: The recording, or the history of a running engine.
        moment: A copy of the state on display.
        choose: Called with the objectives that the user sets.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("ctrl+l", "search", "Search the load"),
    ]

    def __init__(
        self, slo: Slo, history: Timeline, moment: EngineState, choose: Callable[[Slo], object]
    ) -> None:
        super().__init__()
        self._slo = slo
        self._history = history
        self._moment = moment
        self._choose = choose
        self._unproven: Slo | None = None
        """Objectives without advice, since the recording could not be repeated."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Limits for latencies (SLO)", classes="dialog-title")
            yield Input(self._slo.source, max_length=200, compact=True, id="slo-input")
            yield Static("", id="slo-error", markup=False)
            for example, about in EXAMPLES:
                yield Label(Content.assemble((f"{example:<22}", "bold"), about))
            yield Label(f"Seconds for {', '.join(FIGURES)}; an empty text for no limits")
            with VerticalScroll(id="slo-scroll", can_focus=False):
                yield Static(self._misses(), id="replay-answer", markup=False)
            yield Label(
                "Enter sets them, and again closes; Ctrl-L searches the load that they hold",
                classes="dialog-hint",
            )

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        slo = self._parsed()
        if slo is None:
            return
        if slo == self._slo:
            self.dismiss()
            return
        self._set(slo)
        if not slo:
            self.dismiss()

    def action_search(self) -> None:
        slo = self._parsed()
        if slo is None or self.is_replaying:
            return
        if slo != self._slo:
            self._set(slo)
        if not slo:
            return
        anyway, self._unproven = slo == self._unproven, None

        def unproven() -> None:
            self._unproven = slo

        history, progress = self._history, self.show_progress
        self.replay(lambda: _advice(history, slo, progress, anyway=anyway, unproven=unproven))

    def _parsed(self) -> Slo | None:
        """Returns the objectives in the input; `None` if they are invalid, which is then said."""
        error = self.query_one("#slo-error", Static)
        try:
            slo = parse(self.query_one(Input).value)
        except SloError as reason:
            error.update(safe_line(f"{reason}."))
            return None
        error.update("")
        return slo

    def _set(self, slo: Slo) -> None:
        self._slo = slo
        self._choose(slo)
        self.query_one("#replay-answer", Static).update(self._misses())

    def _misses(self) -> str:
        if not self._slo:
            return ""
        misses = slo_misses.split(self._moment, self._slo)
        return "\n".join(map(safe_line, slo_misses.describe(misses, self._slo)))


def _advice(
    history: Timeline,
    slo: Slo,
    progress: ShowProgress,
    *,
    anyway: bool,
    unproven: Callable[[], object],
) -> str:
    """Returns the load that holds the objectives, and the advice, or why there is none.

    `unproven` is called if the recording cannot be repeated, and advice needs `anyway`.
    """
    try:
        with recording_of(history) as (path, _):
            advice = advise(Question(source=path, anyway=anyway), slo, progress)
    except WHATIF_ERRORS as error:
        return f"No advice: {error}."
    lines = [advice_report.load_sentence(advice), "", advice_report.as_text(advice)]
    if not advice.trials:
        unproven()
        lines.append("Ctrl-L searches anyway.")
    return "\n".join(lines).strip()
