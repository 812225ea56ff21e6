"""The times and sizes of recorded steps, with the inputs of the engine before each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from seqtop.history.replay import Reader
from seqtop.state import EngineState
from seqtop.wire.messages import ControlCall, EngineInfo, Event, RequestArrived, Step


class TimedStep(msgspec.Struct):
    """The inputs of the engine before it scheduled one step, and the times and size of the step.

    An asynchronous engine schedules a step before it has processed the outputs of the one before.
    """

    arrived: list[str]
    """Ids of requests, in order."""
    aborted: list[str]
    start_time: float
    end_time: float
    num_prefill_tokens: int
    num_decode_tokens: int
    is_idle_after: bool = False
    """True if no request was unfinished after the step."""
    is_last: bool = False
    """True if the recording has no step after it, or a gap."""
    first_joined_at: float | None = None
    """The time at which the first of those that arrived could be scheduled."""
    aborted_during: list[str] = []
    """Ids of requests that were aborted between its scheduling and the next outputs."""
    controls: list[tuple[int, ControlCall]] = []
    """Calls from outside before it was scheduled, each with the steps whose outputs had been
    processed."""
    num_schedule_calls: int | None = None
    """Calls of the scheduler before its outputs were processed, if the engine counts them."""
    num_processed: int | None = None
    """The steps whose outputs were processed before it was scheduled; `None` for all before it."""
    busy_until: float = 0.0
    """The end of the step before, whose model an asynchronous engine does not wait for."""

    @property
    def seconds(self) -> float:
        """The duration of the step, without the time that its model waited for that of another."""
        return max(self.end_time - max(self.start_time, self.busy_until), 0.0)


def timed_step(
    step: Step, arrived: list[str], aborted: list[str], before: Sequence[TimedStep] = ()
) -> TimedStep:
    """Returns the inputs, the times and the size of a step after the steps `before`."""
    stats = step.stats
    return TimedStep(
        arrived,
        aborted,
        step.start_time,
        step.time,
        stats.num_prefill_tokens,
        stats.num_decode_tokens,
        is_idle_after=not stats.num_running + stats.num_waiting + (stats.num_swapped or 0),
        controls=[(len(before), call) for call in step.control_calls],
        busy_until=before[-1].end_time if before else 0.0,
        num_schedule_calls=step.num_schedule_calls,
    )


class TimedSteps(Reader):
    """Reads the inputs, times and sizes of the steps of a run, which may start in the middle."""

    needs_state = False

    def __init__(self) -> None:
        self.steps: list[TimedStep] = []
        """The steps read so far."""
        self.info: EngineInfo | None = None
        """The engine, as last described."""
        self._arrived: list[str] = []
        self._first_joined_at: float | None = None

    def start(self, position: int, state: EngineState) -> None:
        """Starts, or continues after missing events."""
        self.info = state.info
        self._arrived, self._first_joined_at = [], None
        self.end()

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads the next event."""
        match event:
            case EngineInfo():
                self.info = event
            case RequestArrived():
                self._arrived.append(event.request_id)
                if self._first_joined_at is None:
                    self._first_joined_at = event.arrival_time
            case Step():
                self.steps.append(timed_step(event, self._arrived, [], self.steps))
                self.steps[-1].first_joined_at = self._first_joined_at
                self._arrived, self._first_joined_at = [], None
            case _:
                pass

    def end(self) -> None:
        """Marks the last step as one without a known step after it."""
        if self.steps:
            self.steps[-1].is_last = True
