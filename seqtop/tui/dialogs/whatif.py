"""The dialog that predicts a recorded run with other settings, or advises on them."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Label, Static

from seqtop.history.file_store import FileStore
from seqtop.history.timeline import Timeline
from seqtop.state import EngineState
from seqtop.state.slo import FIGURES, SloError, operation, parse, words
from seqtop.text.tables import table
from seqtop.tui.dialogs.replays import ReplayDialog, recording_of
from seqtop.whatif import advice_report, report
from seqtop.whatif.advise import advise
from seqtop.whatif.driver import ShowProgress
from seqtop.whatif.moment import side_by_side
from seqtop.whatif.predict import WHATIF_ERRORS, Question, predict
from seqtop.whatif.settings import recorded_settings

EXAMPLE = "num_gpu_blocks=+20% max_num_seqs=64"
OBJECTIVES = "ttft=500ms tpot=50ms"


class WhatIfDialog(ReplayDialog):
    """Asks for changes of settings, and shows what the run would have been with them.

    If objectives are among them, it searches the settings that meet these best.

    Args:
        history: The recording, or the history of a running engine.
        moment: A copy of the state on display.
    """

    def __init__(self, history: Timeline, moment: EngineState) -> None:
        super().__init__()
        self._history = history
        self._moment = moment
        self._unproven: list[str] | None = None
        """Changes for which there was no prediction, since the recording could not be repeated."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("What if the settings had been others?", classes="dialog-title")
            yield Input(placeholder=EXAMPLE, max_length=1_000, compact=True, id="whatif-changes")
            with VerticalScroll(id="whatif-scroll", can_focus=False):
                yield Static(_settings(self._moment), id="replay-answer", markup=False)
            yield Label(
                f"Enter predicts; with objectives such as {OBJECTIVES}, it searches the settings",
                classes="dialog-hint",
            )
            yield Label("↑ ↓ scroll, Esc closes", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if self.is_replaying:
            return
        changes = words(event.value)
        anyway, self._unproven = changes == self._unproven, None

        def unproven() -> None:
            self._unproven = changes

        self.replay(
            lambda: _answer(
                self._history, self._moment, changes, self.show_progress, anyway, unproven
            )
        )


def _settings(moment: EngineState) -> str:
    """Returns the settings that can be changed, with their values, a line each."""
    if moment.info is None:
        return ""
    settings = [
        (f"  {name}", "unknown" if value is None else report.setting_text(value))
        for name, value in sorted(recorded_settings(moment.info).items())
    ]
    title = "The settings of this run, of which any can be changed:"
    return "\n".join((title, *table(settings, left=(0, 1))))


def _answer(
    history: Timeline,
    moment: EngineState,
    changes: list[str],
    progress: ShowProgress,
    anyway: bool,
    unproven: Callable[[], object],
) -> str:
    """Returns the prediction or the advice as text, or the reason why there is none.

    `unproven` is called if the recording cannot be repeated, and a prediction needs `anyway`.
    """
    objectives = [word for word in changes if operation(word)[0] in FIGURES]
    changes = [word for word in changes if word not in objectives]
    try:
        slo = parse(",".join(objectives))
        with recording_of(history) as (path, folder):
            if slo:
                question = Question(source=path, changes=changes, anyway=anyway)
                advice = advise(question, slo, progress)
                if not advice.trials:
                    unproven()
                    return f"{advice_report.as_text(advice)}\nEnter searches anyway."
                return advice_report.as_text(advice)
            output = str(folder / "prediction.seqtop")
            question = Question(source=path, changes=changes, output=output, anyway=anyway)
            answer = predict(question, progress)
            lines = [report.as_text(answer)]
            if answer.predicted is None and not answer.basis.is_proven:
                unproven()
                lines.append("Enter predicts anyway.")
            if answer.predicted is not None:
                with FileStore(output) as prediction:
                    then = prediction.at(prediction.index.at_time(moment.time))
                lines += ["", *side_by_side(moment, then, answer.predicted.cut)]
    except (SloError, *WHATIF_ERRORS) as error:
        return f"No {'advice' if objectives else 'prediction'}: {error}."
    return "\n".join(lines)
