"""The restarts of an engine, as its viewer notices them."""

from collections.abc import Callable
from typing import NamedTuple

from seqtop.sequence import SequenceStatus
from seqtop.state.listener import StateChange
from seqtop.tui.time_travel import TimeTravel

RESTART_SECONDS = 120.0
"""Seconds by this machine's clock for which a restart of the engine is announced."""


class Restart(NamedTuple):
    """A restart of the engine."""

    time: float
    """This machine's time when the first state of the new start arrived, in epoch seconds."""
    num_running: int
    """The requests that were running in the last state before."""


class Restarts:
    """Notices that a state replaces one of an earlier start of the engine.

    Args:
        time_travel: The source of the states.
        clock: Returns this machine's time in seconds.
    """

    def __init__(self, time_travel: TimeTravel, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: Restart | None = None
        self._newest = time_travel.newest
        time_travel.add_listener(self._observe)

    @property
    def recent(self) -> Restart | None:
        """The last restart of the engine, if it is recent."""
        restart = self._last
        if restart is None or self._clock() - restart.time > RESTART_SECONDS:
            return None
        return restart

    def _observe(self, change: StateChange) -> None:
        old, self._newest = self._newest, change.state
        if old is change.state or not old.info or not change.state.info:
            return
        if old.info.incarnation != change.state.info.incarnation:
            running = {
                sequence.request_id
                for sequence in old.sequences.values()
                if sequence.status == SequenceStatus.RUNNING
            }
            self._last = Restart(self._clock(), len(running))
