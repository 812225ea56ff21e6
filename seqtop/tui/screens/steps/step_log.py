"""The steps of the history. A step is decoded when it is first shown, then cached."""

from collections import OrderedDict

from seqtop.history.event_index import EventKind
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state.step_costs import has_work
from seqtop.state.step_summary import StepSummary, summarize
from seqtop.tui.ui_state import UiState
from seqtop.wire.errors import WireError
from seqtop.wire.messages import EngineInfo, Step
from seqtop.wire.parsing import step_outline

CACHED_SUMMARIES = 1_000
"""The most summaries that are cached: those of many screens."""


class StepLog:
    """Reads steps of the history by their positions. Used under the lock of `ui`."""

    def __init__(self, ui: UiState) -> None:
        self._ui = ui
        self._summaries: OrderedDict[int, StepSummary | None] = OrderedDict()
        self._last: tuple[int, Step | None] = (-1, None)
        self._infos: dict[int, EngineInfo | None] = {}

    @property
    def timeline(self) -> Timeline:
        return self._ui.source.history

    def __len__(self) -> int:
        return self.timeline.index.num_steps

    def page(self, start: int, stop: int) -> list[int]:
        """Returns the positions of steps `start` to `stop`, oldest first; fewer at the end."""
        return self.timeline.index.steps(start, stop)

    def row(self, position: int) -> int:
        """Returns the index of the last step that ran at or before `position`."""
        return max(self.timeline.index.num_steps_until(position) - 1, 0)

    def summary(self, position: int) -> StepSummary | None:
        """Returns the figures of a step; `None` if it cannot be read."""
        if position in self._summaries:
            self._summaries.move_to_end(position)
            return self._summaries[position]
        step = self._read(position)
        summary = None
        if step is not None:
            gap, was_idle = self._gap(step, position)
            summary = summarize(step, gap=gap, was_idle=was_idle)
        self._summaries[position] = summary
        if len(self._summaries) > CACHED_SUMMARIES:
            self._summaries.popitem(last=False)
        return summary

    def step(self, position: int) -> Step | None:
        """Returns a step in full; `None` if it cannot be read."""
        return self._last[1] if self._last[0] == position else self._read(position)

    def info(self, position: int) -> EngineInfo | None:
        """Returns the description of the engine that ran a step."""
        timeline = self.timeline
        restart = self._restart_before(timeline, position)
        if restart == self._restart_before(timeline, self._ui.time_travel.position):
            return self._ui.state.info or self._ui.newest.info
        if restart not in self._infos:
            try:
                self._infos[restart] = timeline.at(restart).info
            except RecordingError:
                self._infos[restart] = None
        return self._infos[restart]

    def is_after_restart(self, position: int) -> bool:
        """Returns whether the engine was restarted just before a step."""
        timeline = self.timeline
        restart = timeline.index.previous(EventKind.RESTART, position + 1)
        if restart is None:
            return False
        before = timeline.index.num_steps_until(restart)
        return timeline.index.steps(before, before + 1) == [position]

    def _gap(self, step: Step, position: int) -> tuple[float | None, bool]:
        """Returns the seconds between the step before and `step`, and whether these were idle.

        They are negative if `step` had begun before. The gap is unknown if the step before is not
        in the history.
        """
        timeline, row = self.timeline, self.row(position)
        before = self.page(row - 1, row) if row else []
        if not before:
            return None, False
        try:
            with timeline.lock:
                [(_, payload)] = timeline.payloads(before[0] - 1, before[0])
                previous = step_outline(payload or b"")
        except (RecordingError, WireError, ValueError):
            return None, False
        if previous is None or previous.step != step.step - 1:
            return None, False
        return step.start_time - previous.time, not has_work(previous.stats)

    def _read(self, position: int) -> Step | None:
        timeline = self.timeline
        try:
            with timeline.lock:
                events = [event for _, event in timeline.events(position - 1, position)]
        except RecordingError:
            return None
        step = events[-1] if events else None
        if not isinstance(step, Step):
            return None
        self._last = position, step  # the newest step is often read for its row and for its details
        return step

    @staticmethod
    def _restart_before(timeline: Timeline, position: int) -> int:
        """Returns the position of the last restart at or before `position`."""
        restart = timeline.index.previous(EventKind.RESTART, position + 1)
        return timeline.first if restart is None else restart
