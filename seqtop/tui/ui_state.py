"""The state of the user interface: the engine's state on display, selection and preferences.

Widgets read it and have no such state of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from seqtop.history.step_series import StepSeries
from seqtop.history.timeline import RecordingError
from seqtop.live.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.block_index import BlockIndex
from seqtop.state.fields import DEFAULT_COLUMNS
from seqtop.state.filter import NO_FILTER, Filter, parse
from seqtop.state.freeze import freeze
from seqtop.state.latency import Latencies, Measured
from seqtop.state.listener import StateChange
from seqtop.state.ordering import SequenceView, Sort
from seqtop.tui import seek
from seqtop.tui.recording_control import RecordingControl
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

if TYPE_CHECKING:
    from seqtop.checks.background import BackgroundChecker, LocatedFinding
    from seqtop.explain.explanation import Explanation
    from seqtop.history.condition_search import ConditionSearch


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


EVERYTHING = Changes(None, ticked=True)
NOTHING = Changes(set(), ticked=False)


READ_SECONDS = 0.01
"""Seconds of a frame for reading the history on behalf of the user."""
RESTART_SECONDS = 120.0
"""Seconds by this machine's clock for which a restart of the engine is announced."""


class Restart(NamedTuple):
    """A restart of the engine."""

    time: float
    """This machine's time when the first state of the new start arrived, in epoch seconds."""
    num_running: int
    """The requests that were running in the last state before."""


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
        self.clock = clock
        self.time_travel = TimeTravel(source)
        self.state: EngineState = self.time_travel.state
        """The state on display, as of the last `update`."""
        self.recording: RecordingControl | None = None
        """Records the engine; `None` if the source is a recording."""
        self.checker: BackgroundChecker | None = None
        """Checks the history; `None` until `start_checking`."""
        self.step_series = StepSeries(source.history)
        """The figures of all steps in the history."""

        # Preferences
        self.view = SequenceView()
        self.view.sort = parse_sort(settings.sort or "lifecycle")
        self.view.filter = parse(settings.filter or "")
        self.view.tree = settings.tree is not False
        self.columns = settings.columns or DEFAULT_COLUMNS
        """Keys of the table's columns; those at the end are left out where there is no room."""
        self.latencies = Latencies(parse_slo(settings.slo or {}))
        """Latencies of the source up to now."""
        self.latency_wanted: bool | None = settings.latency
        """True if the latency panel is shown; `None` shows it where there is much room."""
        self.detail_share: int | None = settings.detail_share
        """Percent of the height, or width, that the detail pane takes; `None` for the default."""
        self.detail_wanted: bool | None = settings.detail
        """True if the detail pane is shown; `None` shows it where there is room."""
        self.marking: Marking = "plain"
        """The token property that the text of a sequence shows."""

        # Selection
        self.selected: int | None = None
        """Id of the sequence under the cursor."""
        self.hidden_selection: int | None = None
        """Id of the sequence that the user selected and the filter hides.

        It is selected again when it is shown, unless the user has selected another one."""
        self.is_user_selection = False
        """True if the user has put the cursor there."""
        self.following = False
        """True if the table scrolls along when the selected row moves."""
        self.block: int | None = None
        """The block under the cursor of the block map, numbered as in `BlockMap`.

        While it is `None`, the cursor stays on the first block of the selected sequence."""
        self.single_blocks = False
        """True if the block map has a cell for every block even if the pool does not fit then."""
        self.finding: int | None = None
        """Number of the finding under the cursor of the checks screen."""
        self.pending_selection: str | None = None
        """Id of the request to select when it appears, such as the one just submitted."""
        self.marked_state: EngineState | None = None
        """A copy of the state at the moment that the user has marked, to compare with others."""
        self.scroll_target: int | None = None
        """Id of the sequence that `pending_selection` selected: its row stays visible while it
        waits."""

        self.condition = ""
        """The condition that was last searched for, as the user typed it; empty before."""
        self.condition_search: ConditionSearch | None = None
        """The search in progress, which each frame continues."""
        self._explanation: Explanation | None = None
        """The explanation of the request for which one was last wanted."""
        self._thresholds = parse_thresholds(settings.checks or {})
        self._changes = EVERYTHING
        """Changes since the last `take_changes`."""
        self._arranged_for: tuple[bool, int] | None = None
        """`paused` and the position for which the view was last arranged."""
        self._block_index = BlockIndex()
        self._is_indexed = False
        """True if `_block_index` follows the state on display, as it does once it was used."""
        self._changed_blocks: set[int] | None = None
        """Blocks whose owners changed since the last `take_changed_blocks`; `None` means all."""
        self._restart: Restart | None = None
        self._newest = self.time_travel.newest
        """The newest state that a listener has seen."""
        self._second = -1
        self._num_messages = -1
        self._last_message_time = clock()
        self.time_travel.add_listener(self._observe_latencies)
        if self.engine is not None:
            self.recording = RecordingControl(self.engine)
            self.engine.add_listener(self._observe_restarts)
            self.engine.add_callback(lambda: self.request_frame())

    @property
    def lock(self) -> threading.RLock:
        return self.source.lock

    @property
    def second(self) -> int:
        """The engine's time in whole seconds."""
        time = self.state.time
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
    def may_be_controlled(self) -> bool:
        """True if the engine may accept commands: it has not said that it does not."""
        info = self.newest.info
        return self.engine is not None and (info is None or info.control)

    @property
    def silence(self) -> float:
        """Seconds since the last message arrived, by this machine's clock."""
        return max(self.clock() - self._last_message_time, 0.0)

    @property
    def ages_by_itself(self) -> bool:
        """True if the display changes with this machine's time."""
        return self.source.connection.state is ConnectionState.LOST

    @property
    def recent_restart(self) -> Restart | None:
        """The last restart of the engine, if it is recent."""
        restart = self._restart
        if restart is None or self.clock() - restart.time > RESTART_SECONDS:
            return None
        return restart

    @property
    def measured(self) -> Measured:
        """Latencies in the time before the moment on display."""
        if self.state is self.newest:
            return self.latencies.now
        return self.latencies.at(self.state.info, self.state.time)

    @property
    def selection(self) -> tuple[RequestState, SequenceState] | None:
        """The selected sequence and its request, if the state on display has it."""
        if self.selected is None:
            return None
        return self.sequence(self.selected)

    def sequence(self, seq_id: int) -> tuple[RequestState, SequenceState] | None:
        """Returns a sequence of the state on display, with its request."""
        found = self.state.sequences.get(seq_id)
        return None if found is None else (self.state.requests[found.request_id], found)

    def select(self, seq_id: int) -> None:
        """Selects a sequence for the user; unfolds or drops the filter if they would hide it."""
        self.selected, self.is_user_selection, self.hidden_selection = seq_id, True, None
        if self.view.index(seq_id) is None and self.view.folded:
            self.view.folded.clear()
            self.view.rebuild(self.state)
        if self.view.index(seq_id) is None:
            self.filter_by(NO_FILTER)

    def take_pending_selection(self) -> int | None:
        """Returns and clears the first sequence of the pending request, if it has appeared."""
        request = self.state.requests.get(self.pending_selection or "")
        if request is None or not request.seq_ids:
            return None
        seq_id = request.seq_ids[0]
        self.pending_selection, self.scroll_target = None, seq_id
        return seq_id

    def is_scroll_target_selected(self) -> bool:
        """Returns whether the selected row has to stay visible.

        This is so while its sequence waits, and once more after it has started to run.
        """
        found, is_target = self.selection, self.selected == self.scroll_target
        if found is None or not is_target or found[1].status != SequenceStatus.WAITING:
            self.scroll_target = None
        return found is not None and is_target

    def update(self) -> None:
        """Updates the state on display, the view and the figures of steps."""
        if self.time_travel.play():
            self.request_frame()  # the next frame plays on
        self._continue_search()
        if not self.read_steps():
            self.request_frame()  # the next frame reads on
        touched = self.time_travel.take_touched()
        self.state = self.time_travel.state
        self._changes |= self._arrange(touched)
        position = self.paused, self.time_travel.position
        if self.paused and position != self._arranged_for:
            # Waiting times are those of the position on display, even within a second.
            self.view.tick(self.state)
            self._changes = self._changes._replace(ticked=True)
        self._arranged_for = position

    def block_index(self) -> BlockIndex:
        """Updates and returns the index of the blocks of the state on display."""
        if not self._is_indexed or not self._block_index.fits(self.state):
            self._block_index.rebuild(self.state)
            self._is_indexed, self._changed_blocks = True, None
        return self._block_index

    def take_changed_blocks(self) -> set[int] | None:
        """Returns the blocks whose owners changed since the last call; `None` means all."""
        changed, self._changed_blocks = self._changed_blocks, set()
        return changed

    def take_changes(self) -> Changes:
        """Returns the changes since the last call."""
        changes, self._changes = self._changes, NOTHING
        return changes

    def read_steps(self) -> bool:
        """Reads some of the new steps of the history; returns whether it has read all."""
        if self.source.connection.num_messages != self._num_messages:
            self._num_messages = self.source.connection.num_messages
            self._last_message_time = self.clock()
        return self.step_series.update()

    def start_checking(self) -> BackgroundChecker:
        """Creates a checker for the history."""
        from seqtop.checks.background import BackgroundChecker

        self.checker = BackgroundChecker(self.source.history, thresholds=self._thresholds)
        return self.checker

    def findings_about(self, request_id: str, seq_id: int) -> list[LocatedFinding]:
        """Returns the findings, up to the moment on display, that name a sequence."""
        if self.checker is None or not self.checker.num_findings:
            return []
        info = self.state.info
        incarnation = info.incarnation if info else ""
        return self.checker.about(incarnation, request_id, seq_id, self.time_travel.position)

    def jump(self, wanted: seek.Seek, failure: str) -> None:
        """Moves through the history, describes the event there, and selects its first request."""
        self.time_travel.go(wanted, failure)
        if not self.time_travel.key_message:
            self.describe_event()

    def describe_event(self) -> None:
        """Describes the event at the position on display, and selects its first request."""
        travel, timeline = self.time_travel, self.source.history
        if not travel.has_position:
            return
        with timeline.lock, contextlib.suppress(RecordingError):
            event, costs = seek.describe_moment(timeline, travel.position)
            if costs:
                first = next(iter(costs))
                self.pending_selection = first if first in travel.state.requests else None
                names = ", ".join(
                    f"{name} ({cost})" if cost else name for name, cost in costs.items()
                )
                travel.seek_message = f"{event} here: {names}. {travel.seek_message}".rstrip()

    def go_to_finding(self, found: LocatedFinding, message: str) -> None:
        """Moves to a finding, and selects its sequence and its block."""
        travel, finding = self.time_travel, found.finding
        travel.go(seek.to_position(found.position), "")
        travel.seek_message = f"{message} {travel.seek_message}".rstrip()
        self.update()
        self._changes = EVERYTHING
        self.finding = found.number
        if finding.block is not None:
            self.block = finding.block
        request = self.state.requests.get(finding.request_id or "")
        seq_ids = [finding.seq_id] if finding.seq_id is not None else request and request.seq_ids
        for seq_id in seq_ids or ():
            if seq_id in self.state.sequences:
                self.select(seq_id)
                break

    def search_condition(self, direction: int) -> None:
        """Starts to search for `condition`, forwards (1) or backwards (-1).

        Raises:
            FilterError: The condition is invalid.
        """
        timeline, position = self.source.history, self.time_travel.position
        from seqtop.history.condition_search import ConditionSearch
        from seqtop.state.condition import parse_condition

        condition = parse_condition(self.condition)
        self.condition_search = ConditionSearch(timeline, condition, position, direction)
        self.request_frame()

    def cancel_search(self) -> bool:
        """Ends the search in progress; returns whether there was one."""
        search, self.condition_search = self.condition_search, None
        return search is not None

    def _continue_search(self) -> None:
        """Searches on for a hundredth of a second, and goes to what has been found."""
        search, travel = self.condition_search, self.time_travel
        if search is None:
            return
        if search.advance(READ_SECONDS):
            self.request_frame()  # the next frame searches on
            return
        self.condition_search = None
        where = "after" if search.direction > 0 else "before"
        nothing = f"Nothing matches {self.condition} {where} this moment."
        if search.match is None:
            travel.key_message = search.error or nothing
            return
        travel.go(seek.to_position(search.match), nothing)
        travel.seek_message = f"{self.condition} begins here. {travel.seek_message}".rstrip()
        found = travel.state.sequences.get(
            -1 if search.match_seq_id is None else search.match_seq_id
        )
        if found is not None:
            self.pending_selection = found.request_id

    @property
    def is_explaining(self) -> bool:
        """True if the next frame has to read on for `explanation`."""
        return self._explanation is not None and not self._explanation.is_complete

    def explanation(self) -> Explanation | None:
        """Returns the explanation of the selected request's latency, as far as it has been read.

        `None` if no sequence is selected. It goes up to the moment on display, or to a later one
        for which it was read before. Each call reads for a hundredth of a second at most.
        """
        found = self.selection
        if found is None:
            self._explanation = None
            return None
        from seqtop.explain.explanation import Explanation

        position = self.time_travel.position
        if self._explanation is None or not self._explanation.extend(found[0], position):
            self._explanation = Explanation(self.source.history, found[0], position)
        if self._explanation.advance(READ_SECONDS):
            self.request_frame()  # the next frame reads on
        return self._explanation

    def mark_moment(self) -> None:
        """Marks the moment on display as the first one of a comparison."""
        self.marked_state = freeze(self.state)

    def sort_by(self, sort: Sort) -> None:
        self.view.sort = sort
        self.view.rebuild(self.state)

    def filter_by(self, wanted: Filter) -> None:
        self.view.filter = wanted
        self.view.rebuild(self.state)

    def toggle_tree(self) -> None:
        """Switches between sequences grouped by request and single sequences."""
        self.view.tree = not self.view.tree
        self.view.rebuild(self.state)

    def fold(self) -> bool:
        """Folds or unfolds the sequences below the selected one, or the tree that it is in.

        Returns:
            True if there is anything to fold.
        """
        if self.selected is None:
            return False
        place = self.view.tree_position(self.selected)
        if not place.is_parent:
            if place.parent is None:
                return False
            self.selected = place.parent
        self.view.folded ^= {self.selected}
        self.view.update(self.state, [self.selected])
        return True

    def fold_all(self) -> None:
        """Folds every tree, or unfolds all if any is folded."""
        while (
            self.selected is not None
            and (parent := self.view.tree_position(self.selected).parent) is not None
        ):
            self.selected = parent
        self.view.fold_all()
        self.view.rebuild(self.state)

    def _arrange(self, touched: set[int] | None) -> Changes:
        """Updates the view from the state on display."""
        ticked, self._second = self.second != self._second, self.second
        if touched is None:
            self._is_indexed = False
            self.view.rebuild(self.state)
            return EVERYTHING
        if self._is_indexed:
            # Frame by frame: to catch up with many frames at once would delay one of them.
            changed = self._block_index.update(self.state, touched)
            if self._changed_blocks is not None:
                self._changed_blocks |= changed
        moved = self.view.update(self.state, touched)
        if ticked:
            self.view.tick(self.state)
        return Changes(touched | moved if moved else touched, ticked)

    def _observe_latencies(self, change: StateChange) -> None:
        self.latencies.observe(change.state, change.touched)

    def _observe_restarts(self, change: StateChange) -> None:
        """Notices that a state replaces one of an earlier start of the engine."""
        old, self._newest = self._newest, change.state
        if old is change.state or old.info is None or change.state.info is None:
            return
        if old.info.incarnation != change.state.info.incarnation:
            running = {
                each.request_id
                for each in old.sequences.values()
                if each.status == SequenceStatus.RUNNING
            }
            self._restart = Restart(self.clock(), len(running))
