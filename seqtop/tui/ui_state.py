"""The state of the user interface: the engine's state on display, selection and preferences.

Widgets read it and have no such state of their own. With several engines there is one for each.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seqtop.history.step_series import StepSeries
from seqtop.history.token_gaps import token_gaps
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.fields import DEFAULT_COLUMNS
from seqtop.state.filter import NO_FILTER, Filter, parse
from seqtop.state.imbalance import NamedEngine, imbalance
from seqtop.state.latency import Latencies, Measured
from seqtop.state.listener import StateChange
from seqtop.state.ordering import SequenceView, Sort
from seqtop.state.sliding_window import WINDOW
from seqtop.state.summary import RATES, summarize
from seqtop.state.verdict import EngineVerdict, beside, of_last_minute
from seqtop.transport.connection import ConnectionState
from seqtop.tui.block_cursor import BlockCursor
from seqtop.tui.checks import Checks
from seqtop.tui.condition_finder import ConditionFinder
from seqtop.tui.message_clock import MessageClock
from seqtop.tui.misses import Misses
from seqtop.tui.recording_control import RecordingControl
from seqtop.tui.restarts import Restarts
from seqtop.tui.sequence_cursor import SequenceCursor
from seqtop.tui.settings import (
    DEFAULTS,
    Marking,
    Settings,
    parse_slo,
    parse_sort,
    parse_thresholds,
)
from seqtop.tui.source import Engine, Source
from seqtop.tui.time_travel import TimeTravel
from seqtop.wire.messages import EngineSummary


class Changes(NamedTuple):
    """The changes that the next frame has to draw."""

    touched: set[int] | None
    """Ids of the sequences that changed; `None` means all."""
    ticked: bool
    """True if the engine's clock has reached another second."""

    def __or__(self, other: Changes) -> Changes:
        if self.touched is None or other.touched is None:
            return EVERYTHING
        return Changes(self.touched | other.touched, self.ticked or other.ticked)


LEAST_SAMPLES = 20
"""The samples of a latency from which on some of them are outliers."""

EVERYTHING = Changes(None, ticked=True)
NOTHING = Changes(set(), ticked=False)


@dataclass
class Preferences:
    """The choices of the user about what is shown."""

    columns: tuple[str, ...]
    """Keys of the table's columns; those at the end are left out where there is no room."""
    latency_wanted: bool | None
    """True if the latency panel is shown; `None` shows it where there is much room."""
    detail_share: int | None
    """Percent of the height, or width, that the detail pane takes; `None` for the default."""
    detail_wanted: bool | None
    """True if the detail pane is shown; `None` shows it where there is room."""
    marking: Marking = "plain"
    """The token property that the text of a sequence shows."""


_MOST_PLAYED = 8
"""Positions that one frame plays at most, unless they are played fast. After more, times between
tokens are read from the recording: those in one change would count with their mean."""


class UiState:
    """The display of one source.

    All of it is used under `lock`.

    Args:
        source: The engine or the recording.
        clock: Returns this machine's time in seconds.
        settings: The preferences to start with.
    """

    def __init__(
        self,
        source: Source,
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULTS,
    ) -> None:
        self.source = source
        self.request_frame: Callable[[], object] = lambda: None
        """Requests another frame; any thread may call it. The app sets it."""
        self.show_news: Callable[[], object] = lambda: None
        """Requests a frame for what the engine or the recording does by itself, as above."""
        self.clock = clock
        self.others: list[UiState] = []
        """The displays of the other engines, each with its own lock; `Engines` sets them."""
        self.time_travel = TimeTravel(source, lambda: self.show_news())
        self.state: EngineState = self.time_travel.state
        """The state on display, as of the last `update`."""
        self.recording = RecordingControl(self.time_travel.engine)
        self.step_series = StepSeries(source.history)
        """The figures of all steps in the history."""

        # Preferences
        self.view = SequenceView()
        self.view.sort = parse_sort(settings.sort or "lifecycle")
        self.view.filter = parse(settings.filter or "")
        self.view.tree = settings.tree is not False
        self.preferences = Preferences(
            settings.columns or DEFAULT_COLUMNS,
            settings.latency,
            settings.detail_share,
            settings.detail,
        )
        self.latencies = Latencies(parse_slo(settings.slo or {}))
        """Latencies of the source up to now."""
        self.cursor = SequenceCursor()
        self.blocks = BlockCursor()
        self.condition_finder = ConditionFinder(source.history, self.time_travel)
        self.checks = Checks(source.history, parse_thresholds(settings.checks or {}))
        self.misses = Misses(source.history)
        self.message_clock = MessageClock(source.connection, clock)
        self._changes = EVERYTHING
        """Changes since the last `take_changes`."""
        self._arranged_for: tuple[bool, int] | None = None
        """`paused` and the position for which the view was last arranged."""
        self._second = -1
        self._outliers: Mapping[str, tuple[float, float]] = {}
        self._outliers_at = (-1, -1)
        self.usual_gap = 0.0
        """The median time between two tokens, as of the last `outliers`; 0 if it is unknown."""
        self._verdict = EngineVerdict("")
        self._verdict_at: tuple[object, ...] = ()
        self.summary: EngineSummary | None = None
        """The figures of the engine among others, as of the last `update_summary`."""
        self.summaries: deque[EngineSummary] = deque(maxlen=MAX_SUMMARIES)
        """The summaries that the engine has sent, the newest last, a second apart."""
        self._own_verdict = EngineVerdict("")
        self._own_verdict_at: tuple[object, ...] = ()
        self.restarts = Restarts(self.time_travel, clock)
        self._heard_at = 0
        """The position of a recording at which its latencies were last observed."""
        self.time_travel.add_listener(self._observe_latencies)

    @property
    def lock(self) -> threading.RLock:
        return self.source.lock

    @property
    def name(self) -> str:
        """The name of the engine where it was found, or by which it calls itself."""
        known = self._received or self.newest.info
        own = known.engine_id if known is not None else self.source.connection.endpoint
        return self.source.name or own

    @property
    def named(self) -> NamedEngine | None:
        """The summary, with the name of the engine; `None` while nothing is known of it."""
        return None if self.summary is None else NamedEngine(self.name, self.summary)

    @property
    def _received(self) -> EngineSummary | None:
        """The summary that the engine has sent, if its stream is not read."""
        return None if self.engine is None else self.engine.summary

    @property
    def is_stale(self) -> bool:
        """True if the newest state is on display, and its engine is lost or has ended."""
        gone = ConnectionState.LOST, ConnectionState.STOPPED
        return not self.time_travel.has_position and self.source.connection.state in gone

    @property
    def verdict(self) -> EngineVerdict:
        """The limit of the engine in the minute before the moment on display.

        It changes once a second while the newest state is on display: nobody reads faster, and the
        largest holder is looked for among all sequences.
        """
        state = self.state
        second = int(self.now) if math.isfinite(self.now) else 0
        at: tuple[object, ...] = (
            ("paused", state.step)
            if self.paused
            else (
                second,
                state.num_steps_seen > 0,
            )
        )
        if at != self._verdict_at:
            self._verdict_at, self._verdict = at, of_last_minute(state)
            if state is self.newest and (uneven := self._imbalance()):
                self._verdict = beside(self._verdict, uneven)
        return self._verdict

    def _imbalance(self) -> str:
        """Returns a sentence if this engine is full, and one of the others has room."""
        own, live = self.named, ConnectionState.LIVE
        others = [ui.named for ui in self.others if ui.source.connection.state is live]
        known = [other for other in others if other is not None]
        return imbalance([own, *known], own.summary) if own is not None and known else ""

    @property
    def needs_stream(self) -> bool:
        """True if the stream is read although nobody looks: for a pause or a recording."""
        return self.paused or self.recording.is_recording

    def update_summary(self) -> None:
        """Updates `summary` from the stream, or with what the engine has sent in its place."""
        received = self._received
        if received is None:
            self.summaries.clear()
            self.summary = self._summarize()
        elif received is not self.summary:
            self.summary = received
            if self.summaries and received.time < self.summaries[-1].time:
                self.summaries.clear()  # the engine has been restarted
            self.summaries.append(received)

    def _summarize(self) -> EngineSummary | None:
        state = self.newest
        second = int(state.time) if math.isfinite(state.time) else 0
        if (at := (second, state.num_steps_seen > 0)) != self._own_verdict_at:
            self._own_verdict_at, self._own_verdict = at, of_last_minute(state)
        figures = self.step_series.last_second(state.time)
        rates = None if figures is None else {name: figures.rate(name) for name in RATES}
        return summarize(state, self.latencies, rates, self._own_verdict)

    @property
    def now(self) -> float:
        """The engine's time on display; that of a lost engine goes on by this machine's clock."""
        is_lost = self.is_stale and self.source.connection.state is ConnectionState.LOST
        return self.state.time + (self.message_clock.silence if is_lost else 0.0)

    @property
    def second(self) -> int:
        """The engine's time in whole seconds."""
        time = self.now
        return int(time) if abs(time) < 1e15 else 0

    @property
    def paused(self) -> bool:
        return self.time_travel.paused

    @property
    def engine(self) -> Engine | None:
        """The running engine; `None` for a recording."""
        return self.time_travel.engine

    @property
    def newest(self) -> EngineState:
        """The newest state of the engine; of a recording the one on display."""
        return self.time_travel.newest

    @property
    def measured(self) -> Measured:
        """Latencies in the time before the moment on display."""
        if self.state is self.newest:
            return self.latencies.now
        return self.latencies.at(self.state.info, self.state.time)

    def outliers(self) -> Mapping[str, tuple[float, float]]:
        """Returns p90 and p99, in seconds, of the figures in the columns with latencies.

        They are those of the minute before the moment on display, and change once a second. A
        column with few samples has none.
        """
        moment = self.second, self.time_travel.position if self.paused else -1
        if self._outliers_at != moment:
            windows = self.measured.windows
            self._outliers_at = moment
            self._outliers = {
                column: (windows[key].percentile(90), windows[key].percentile(99))
                for column, key in (("ttft", "ttft"), ("itl", "tpot"), ("waited", "queue"))
                if len(windows[key]) >= LEAST_SAMPLES
            }
            itl = windows["itl"]
            self.usual_gap = itl.percentile(50) if len(itl) else 0.0
        return self._outliers

    @property
    def selection(self) -> tuple[RequestState, SequenceState] | None:
        """The selected sequence and its request, if the state on display has it."""
        seq_id = self.cursor.seq_id
        return None if seq_id is None else self.sequence(seq_id)

    def sequence(self, seq_id: int) -> tuple[RequestState, SequenceState] | None:
        """Returns a sequence of the state on display, with its request."""
        sequence = self.state.sequences.get(seq_id)
        return None if sequence is None else (self.state.requests[sequence.request_id], sequence)

    def select(self, seq_id: int) -> None:
        """Selects a sequence for the user; unfolds or drops the filter if they would hide it."""
        self.cursor.set(seq_id)
        if self.view.index(seq_id) is None and self.view.folded:
            self.view.folded.clear()
            self.view.rebuild(self.state)
        if self.view.index(seq_id) is None:
            self.filter_by(NO_FILTER)
        self.view.grouped.reveal(seq_id)

    def take_pending_selection(self) -> int | None:
        """Returns and clears the first sequence of the pending request, if it has appeared."""
        request = self.state.requests.get(self.cursor.pending or "")
        if request is None or not request.seq_ids:
            return None
        seq_id = request.seq_ids[0]
        self.cursor.pending, self.cursor.scroll_target = None, seq_id
        return seq_id

    def is_scroll_target_selected(self) -> bool:
        """Returns whether the selected row has to stay visible.

        This is so while its sequence waits, and once more after it has started to run.
        """
        selection, cursor = self.selection, self.cursor
        is_target = cursor.seq_id == cursor.scroll_target
        if selection is None or not is_target or selection[1].status != SequenceStatus.WAITING:
            cursor.scroll_target = None
        return selection is not None and is_target

    def update(self, *, redraw: bool = False) -> None:
        """Updates the state on display, the view and the figures of steps.

        Args:
            redraw: Says that everything has to be drawn again.
        """
        if self.time_travel.play():
            self.show_news()  # the next frame plays on
        self.cursor.pending = self.condition_finder.advance() or self.cursor.pending
        if self.condition_finder.search is not None:
            self.request_frame()  # the next frame searches on
        if not self.read_steps():
            self.request_frame()  # the next frame reads on
        touched = self.time_travel.take_touched()
        self.state = self.time_travel.state
        position = self.paused, self.time_travel.position
        # Waiting times are those of the position on display, even within a second.
        has_moved = self.paused and position != self._arranged_for
        ticked = has_moved or self.second != self._second
        self._second, self._arranged_for = self.second, position
        self.blocks.update(self.state, touched)
        if touched is None:
            self.view.rebuild(self.state)
        else:
            touched |= self.view.update(self.state, touched)
            if ticked:
                self.view.tick(self.state)
        self._changes |= EVERYTHING if touched is None else Changes(touched, ticked)
        if redraw:
            self._changes = EVERYTHING

    def take_changes(self) -> Changes:
        """Returns the changes since the last call."""
        changes, self._changes = self._changes, NOTHING
        return changes

    def read_steps(self) -> bool:
        """Reads some of the new steps of the history; returns whether it has read all."""
        self.message_clock.update()
        return self.step_series.update()

    def sort_by(self, sort: Sort) -> None:
        self.view.sort = sort
        self.view.rebuild(self.state)

    def filter_by(self, wanted: Filter) -> None:
        self.view.filter = wanted
        self.view.rebuild(self.state)

    def _observe_latencies(self, change: StateChange) -> None:
        is_whole = self.latencies.observe(change.state, change.touched)
        if self.time_travel.playback is None:
            return
        before, self._heard_at = self._heard_at, self.time_travel.position
        if is_whole or abs(self._heard_at - before) > _MOST_PLAYED:
            time = change.state.time  # a jump: what was not played is read, and is no news
            self.latencies.set_gaps(*token_gaps(self.source.history, time - WINDOW, time))
            self.latencies.take_alerts()


MAX_SUMMARIES = 60
"""Summaries of one engine that are stored: a minute."""
MAX_STREAMS = 8
"""The most engines whose streams are read because they were looked at."""


class Engines:
    """A `UiState` for each engine, in the order of the command line, then as they are found.

    Read are the streams of the engines that were looked at last, up to `MAX_STREAMS`; with no more
    engines than that, those of all. The others send summaries. The stream of an engine that is
    paused or recorded is read on, and those of all where conditions are watched.
    """

    def __init__(
        self, sources: Sequence[Source], clock: Callable[[], float], settings: Settings
    ) -> None:
        self.all: list[UiState] = []
        self._clock, self._settings = clock, settings
        for source in sources:
            self.add(source)
        self.shown_index = 0
        """Index of the engine on display."""
        self._looked_at: list[UiState] = []
        """The engines that were looked at, the last one at the end."""
        self.subscribe()

    def __len__(self) -> int:
        return len(self.all)

    def add(self, source: Source) -> UiState:
        """Adds an engine as the last one, and returns its display."""
        with source.lock:  # its thread may apply events already
            added = UiState(source, self._clock, self._settings)
        for ui in self.all:
            ui.others.append(added)
        added.others = [*self.all]
        self.all.append(added)
        with added.lock:
            added.update_summary()
        return added

    @property
    def ui(self) -> UiState:
        """The engine on display."""
        return self.all[self.shown_index]

    def subscribe(self) -> None:
        """Subscribes to the streams that are to be read, and leaves the others."""
        looked_at = [ui for ui in self._looked_at if ui is not self.ui]
        self._looked_at = [*looked_at, self.ui][-MAX_STREAMS:]
        reads_all = bool(self._settings.on) or len(self.all) <= MAX_STREAMS
        for ui in self.all:
            if ui.engine is not None:
                ui.engine.set_subscribed(reads_all or ui in self._looked_at or ui.needs_stream)

    def update(self) -> None:
        """Reads some of the new steps of each engine not on display, and updates all summaries."""
        for ui in self.all:
            with ui.lock:
                if ui is not self.ui:
                    ui.read_steps()
                ui.update_summary()
