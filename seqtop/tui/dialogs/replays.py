"""The base of dialogs whose answers come from replays of a run by the engine's own scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Static
from textual.worker import Worker, WorkerState

from seqtop.history.copying import save
from seqtop.history.timeline import Timeline
from seqtop.text.sanitize import safe_line
from seqtop.tui.dialogs.prompts import Dialog
from seqtop.whatif.driver import DriverError
from seqtop.whatif.predict import scratch_folder


class ReplayDialog(Dialog[None]):
    """A dialog with an answer that scrolls, for which replays run on a thread.

    Closing it ends the replays. Subclasses have a `Static` of the id `replay-answer` in a
    `VerticalScroll`.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Close"),
        Binding("up", "scroll(-1)", "Up", show=False),
        Binding("down", "scroll(1)", "Down", show=False),
        Binding("pageup", "scroll(-10)", "Page up", show=False),
        Binding("pagedown", "scroll(10)", "Page down", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._worker: Worker[str] | None = None
        self._is_closed = False

    @property
    def is_replaying(self) -> bool:
        """True while replays run."""
        return self._worker is not None and self._worker.is_running

    def on_unmount(self) -> None:
        self._is_closed = True

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def replay(self, answer: Callable[[], str]) -> None:
        """Shows the text that a function returns, which runs on a thread."""
        self._show("The engine's scheduler runs again, first with the recorded settings …")
        self._worker = self.run_worker(answer, thread=True, exit_on_error=False)

    def show_progress(self, num_complete: float, total: int) -> None:
        """Shows the number of complete replays; any thread may call it."""
        if self._is_closed:  # ends the processes of the scheduler
            raise DriverError("the dialog was closed")

        def show() -> None:
            if self.is_replaying:
                self._show(f"The engine's scheduler runs again: {num_complete:.1f} of {total} runs")

        self.app.call_later(show)  # from any thread, and without waiting for this one

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.SUCCESS:
            self._show(str(event.worker.result))
        elif event.state is WorkerState.ERROR:
            self._show(f"{type(event.worker.error).__name__}: {event.worker.error}")

    def _show(self, text: str) -> None:
        self.query_one("#replay-answer", Static).update("\n".join(map(safe_line, text.split("\n"))))


@contextmanager
def recording_of(history: Timeline) -> Iterator[tuple[str, Path]]:
    """Yields the path of a recording of a history, and a folder that is deleted afterwards."""
    with scratch_folder() as folder:
        path = getattr(history, "path", None)
        if path is None:
            path = folder / "history.seqtop"
            save(history, path)
        yield str(path), folder
