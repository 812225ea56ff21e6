"""What the screens show: the source's state as it goes, or a still of it while paused.

The feed is the app's only truth: the state on show, the view of it (order and filter), the
selected sequence, whether it is followed. Widgets ask it and keep nothing that matters.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from seqtop.link import LinkState
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.filter import Filter
from seqtop.state.still import still
from seqtop.state.view import SequenceView, Sort
from seqtop.tui.rates import RateMeter, Rates
from seqtop.tui.source import Source


class Frame(NamedTuple):
    """What is new since the last frame."""

    touched: set[int] | None
    """Sequences to look at again; `None` means all."""
    ticked: bool
    """Whether the engine's clock has come to another second."""


EVERYTHING = Frame(None, ticked=True)


class Feed:
    """Polls a `Source` and keeps what is on show. Call everything but `poll` under `lock`."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.time) -> None:
        self.source = source
        self.clock = clock
        self.view = SequenceView()
        self.state: EngineState = source.state
        self.rates = Rates()
        self.selected: int | None = None
        """The id of the sequence that the cursor is on."""
        self.following = False
        """Whether the table scrolls along when the selected row moves."""
        self.paused = False
        self.expected: str | None = None
        """A request to select as soon as it arrives: the one just submitted."""
        self._meter = RateMeter()
        self._version = -1
        self._second = -1
        self._num_messages = -1
        self._heard = clock()
        self._age = -1

    @property
    def lock(self) -> threading.RLock:
        return self.source.lock

    @property
    def now(self) -> float:
        """The engine's time in the picture. Heartbeats move it on while nothing happens."""
        return self.state.time

    @property
    def second(self) -> int:
        """The engine's time in whole seconds: what changes with time alone changes with it."""
        return int(self.now) if abs(self.now) < 1e15 else 0

    @property
    def steps_behind(self) -> int:
        """Steps the engine has made since the pause began."""
        return max(self.source.state.step - self.state.step, 0)

    @property
    def silence(self) -> float:
        """Seconds since the last message arrived, by this machine's clock."""
        return max(self.clock() - self._heard, 0.0)

    @property
    def selection(self) -> tuple[RequestState, SequenceState] | None:
        """The selected sequence and its request, if the state on show has it."""
        if self.selected is None:
            return None
        return self.sequence(self.selected)

    def sequence(self, seq_id: int) -> tuple[RequestState, SequenceState] | None:
        """A sequence of the state on show, with its request."""
        found = self.state.sequences.get(seq_id)
        return None if found is None else (self.state.requests[found.request_id], found)

    def take_expected(self) -> int | None:
        """The first sequence of the expected request, once it is on show; then it is forgotten."""
        request = self.state.requests.get(self.expected or "")
        if request is None or not request.seq_ids:
            return None
        self.expected = None
        return request.seq_ids[0]

    def poll(self) -> Frame | None:
        """Bring the picture up to date; `None` if there is nothing new to draw."""
        version = self.source.version
        if version == self._version and not self._ages():
            return None
        with self.lock:
            self._version = version
            if self.source.link.num_messages != self._num_messages:
                self._num_messages = self.source.link.num_messages
                self._heard = self.clock()
            self._meter.sample(self.source.state)
            if self.paused:
                return Frame(set(), ticked=False)
            return self._advance()

    def pause(self) -> None:
        """Hold the picture; what the source learns meanwhile is shown on `resume`."""
        self.state = still(self.source.state)
        self.paused = True
        self._version = -1

    def resume(self) -> None:
        """Show what is true now. The next `poll` says that everything is new."""
        self.paused = False
        self._version = -1

    def sort_by(self, sort: Sort) -> None:
        self.view.sort = sort
        self.view.rebuild(self.state)

    def filter_by(self, wanted: Filter) -> None:
        self.view.filter = wanted
        self.view.rebuild(self.state)

    def _advance(self) -> Frame:
        touched = self.source.drain()
        if self.state is not self.source.state:
            self.state = self.source.state
            touched = None
        self.rates = self._meter.rates
        ticked, self._second = self.second != self._second, self.second
        if touched is None:
            self.view.rebuild(self.state)
            return EVERYTHING
        self.view.update(self.state, touched)
        if ticked:
            self.view.tick(self.state)
        return Frame(touched, ticked)

    def _ages(self) -> bool:
        """Whether the age of what is shown, displayed in whole seconds, has changed."""
        if self.source.link.state is not LinkState.LOST:
            return False
        second = int(self.silence)
        changed, self._age = second != self._age, second
        return changed
