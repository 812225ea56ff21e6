"""What the screens show: the source's state as it goes, or a moment of the past while paused.

The feed is the app's only truth: the state on show, the view of it (order and filter), the
selected sequence, whether it is followed. Widgets ask it and keep nothing that matters.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from seqtop.checks.background import BackgroundChecker, LocatedFinding
from seqtop.connection import ConnectionState
from seqtop.history.playback import Playback
from seqtop.history.timeline import RecordingError
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.fields import COLUMNS
from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.latency import Latencies, Measured
from seqtop.state.ordering import SequenceView, Sort
from seqtop.tui.rates import RateMeter, Rates
from seqtop.tui.recording_control import Recordable, RecordingControl
from seqtop.tui.screens.sequences.token_marks import Marking
from seqtop.tui.source import Source
from seqtop.tui.time_travel import HeldMoment, Seek, describe_moment, gap_message


class Changes(NamedTuple):
    """What is new since the last frame."""

    touched: set[int] | None
    """Sequences to look at again; `None` means all."""
    ticked: bool
    """Whether the engine's clock has come to another second."""
    news: bool = True
    """Whether anything has come but time, which only what ages shows."""

    def __or__(self, other: "Changes") -> "Changes":
        """What is new in either."""
        if self.touched is None or other.touched is None:
            return EVERYTHING
        return Changes(
            self.touched | other.touched,
            self.ticked or other.ticked,
            self.news or other.news,
        )


_UNFINISHED = [each for each in SequenceStatus if not SequenceStatus.is_finished(each)]
EVERYTHING = Changes(None, ticked=True)
NOTHING = Changes(set(), ticked=False)
"""But perhaps how the source stands."""


class Feed:
    """Polls a `Source` and keeps what is on show. Call everything but `poll` under `lock`."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.time) -> None:
        self.source = source
        self.replay = source if isinstance(source, Playback) else None
        """The source, where it is one that can itself be held and moved."""
        self.taper = RecordingControl(source) if isinstance(source, Recordable) else None
        """Writes down what the source shows, where it is one that can be listened to."""
        self.clock = clock
        self.view = SequenceView()
        self.columns = tuple(column.key for column in COLUMNS)
        """Keys of what the table shows of each sequence, as far as there is room."""
        self.latencies = Latencies()
        """Those of the source, as it goes."""
        self.latency_wanted = False
        """Whether the panel of latencies is to be there."""
        self.detail_share: int | None = None
        """Percent of the height, or width, that the detail pane takes; `None`: as it was made."""
        self.detail_wanted: bool | None = None
        """Whether the detail pane is to be there; `None`: where there is room."""
        self.marking: Marking = "plain"
        """What the text of a sequence tells of its tokens."""
        self.state: EngineState = source.state
        self.rates = Rates()
        self.selected: int | None = None
        """The id of the sequence that the cursor is on."""
        self.chosen = False
        """Whether somebody has put it there."""
        self.following = False
        """Whether the table scrolls along when the selected row moves."""
        self.block: int | None = None
        """The block that the cursor of the block map is on; `None` while it goes along with the
        selected sequence, to whose first block it then points. Numbered as in `BlockMap`."""
        self.remark = ""
        """One sentence on where the last movement through the past has led."""
        self.missed = ""
        """One sentence on why the last key led nowhere; it goes with the next key."""
        self.review: BackgroundChecker | None = None
        """What is found when what is on record is checked; `None` until somebody asks."""
        self.finding: int | None = None
        """The number of the finding that the cursor of the checks screen is on."""
        self.expected: str | None = None
        """A request to select as soon as it arrives: the one just submitted."""
        self.settling: int | None = None
        """The sequence last expected, until it has left the queue: its row stays in sight."""
        self._past: HeldMoment | None = None
        self._touched: set[int] | None = None
        """What the source has touched since it was last shown."""
        self._meter = RateMeter()
        self._measured: EngineState | None = None
        self._version = -1
        self._num_reviewed = -1
        self._second = -1
        self._num_messages = -1
        self._heard = clock()
        self._age = -1
        source.watch(lambda state, touched: self.latencies.observe(state, touched))

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
    def paused(self) -> bool:
        return self._past is not None if self.replay is None else self.replay.paused

    @property
    def position(self) -> int:
        """The position on show, as in `seqtop.history.event_index`; 0 without a history."""
        moving = self.replay or self._past
        if moving is not None:
            return moving.position
        return 0 if self.source.history is None else self.source.history.last

    @property
    def is_of_this_start(self) -> bool:
        """Whether the engine, or the record that is played, is still in the start shown."""
        shown, newest = self.state.info, self.source.state.info
        return shown is None or newest is None or shown.incarnation == newest.incarnation

    @property
    def may_be_controlled(self) -> bool:
        """Whether there is an engine that takes commands, as far as is known."""
        info = self.source.state.info
        return self.replay is None and (info is None or info.control)

    @property
    def silence(self) -> float:
        """Seconds since the last message arrived, by this machine's clock."""
        return max(self.clock() - self._heard, 0.0)

    @property
    def measured(self) -> Measured:
        """Latencies, and who met their objectives, in the time before what is on show."""
        if self._past is None:
            return self.latencies.now
        return self.latencies.at(self.state.info, self.now)

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

    def choose(self, seq_id: int) -> None:
        """Select a sequence for somebody; folds and a filter that would hide it are dropped."""
        self.selected, self.chosen = seq_id, True
        if self.view.index(seq_id) is None and self.view.folded:
            self.view.folded.clear()
            self.view.rebuild(self.state)
        if self.view.index(seq_id) is None:
            self.filter_by(NO_FILTER)

    def take_expected(self) -> int | None:
        """The first sequence of the expected request, once it is on show; then it is forgotten."""
        request = self.state.requests.get(self.expected or "")
        if request is None or not request.seq_ids:
            return None
        seq_id = request.seq_ids[0]
        self.expected, self.settling = None, seq_id
        return seq_id

    def settles(self) -> bool:
        """Whether the selected sequence is still coming to where it runs; for the last time when it
        has come there."""
        found, is_it = self.selection, self.selected == self.settling
        if found is None or not is_it or found[1].status != SequenceStatus.WAITING:
            self.settling = None
        return found is not None and is_it

    @property
    def has_news(self) -> bool:
        """Whether `poll` has anything to do; cheap, and asked for without the lock."""
        return (
            self._has_changed
            or self._age_on_show != self._age
            or self.source.link.num_messages != self._num_messages
        )

    @property
    def _has_changed(self) -> bool:
        """Whether anything but time has come."""
        return self.source.version != self._version or self._num_found != self._num_reviewed

    @property
    def ages_by_itself(self) -> bool:
        """Whether this machine's time has the picture look different."""
        return self.source.link.state is ConnectionState.LOST

    @property
    def ages(self) -> bool:
        """Whether time alone, as heartbeats tell it, has the picture look different."""
        counts = self.state.num_by_status
        in_flight = any(counts[status] for status in _UNFINISHED)
        recording = self.taper is not None and self.taper.path is not None
        return in_flight or recording or self.paused

    def call_at_news(self, call: Callable[[], object]) -> None:
        """Have `call` called, on another thread, once something comes that `poll` has to look at.

        It is not told of what changes with this machine's time (`ages_by_itself`).
        """
        self.source.call_once(call)
        if self.review is not None:
            self.review.call_once(call)

    def poll(self) -> Changes | None:
        """Bring the picture up to date; `None` if there is nothing new to draw."""
        if not self.has_news:
            return None
        with self.lock:
            news = self._has_changed or self._age_on_show != self._age
            self._version, self._num_reviewed = self.source.version, self._num_found
            self._age = self._age_on_show
            self._note_age()
            rates = self._meter.rates
            self._meter.sample(self.source.state)
            self._take_over()
            frame = self._advance() if self._past is None else NOTHING
            return frame._replace(news=news or rates is not self._meter.rates)

    def glance(self) -> None:
        """Keep the rates up to date while nothing else of this is on show."""
        with self.lock:
            self._note_age()
            self._meter.sample(self.source.state)

    @property
    def pace(self) -> Rates:
        """The rates of the source as it goes, whatever moment is on show."""
        return self._meter.rates

    def _note_age(self) -> None:
        if self.source.link.num_messages != self._num_messages:
            self._num_messages = self.source.link.num_messages
            self._heard = self.clock()

    def pause(self) -> Changes:
        """Hold the picture as it is now; what the source learns later is shown on `resume`."""
        self.remark = ""
        self._version = -1
        frame = self._advance()
        if self.replay is not None:
            self.replay.pause()
        else:
            self._past = HeldMoment(self.source.state, self.source.history)
            self.state = self._past.state
        return frame | self._to_the_moment()

    def resume(self) -> None:
        """Show what is true now. The next `poll` says that everything is new."""
        self.remark = ""
        self._version = -1
        if self.replay is not None:
            self.replay.play()
        self._past = None

    def go(self, find: Seek, otherwise: str) -> Changes:
        """Pause, if need be, and show the moment found; `otherwise` is what to say if none is: then
        nothing is paused."""
        timeline = self.source.history
        if timeline is None:
            self.missed = "Nothing of the past is on record."
            return NOTHING
        with timeline.lock:
            position = self.position
            start = max(position, timeline.first)
            found = find(timeline, start)
            if found is None and start > position:
                found = start  # what is shown has been dropped: this is the nearest to it
        if found is None:
            self.missed = otherwise
            return NOTHING
        frame = NOTHING if self.paused else self.pause()
        moving = self.replay or self._past
        assert moving is not None, "what is paused can be moved"
        if found == moving.position:
            self.missed = otherwise
            return frame
        with timeline.lock:
            self.remark = ""
            frame |= self._replay(found) if self._past is None else self._look_back(found)
            self.remark = self.remark or gap_message(timeline, start, moving.position)
        return frame | self._to_the_moment()

    def jump(self, find: Seek, otherwise: str) -> Changes:
        """`go`, and say whom the moment is about; the first of them is expected to be selected."""
        frame = self.go(find, otherwise)
        if not self.missed:
            self.point_out()
        return frame

    def _to_the_moment(self) -> Changes:
        """Updates what changes with time alone to the held moment."""
        self.view.tick(self.state)
        return Changes(set(), ticked=True)

    def point_out(self) -> None:
        """Say whom the moment on show is about, and have the first of them selected."""
        moving, timeline = self.replay or self._past, self.source.history
        if moving is None or timeline is None:
            return
        with timeline.lock, contextlib.suppress(RecordingError):
            what, whom = describe_moment(timeline, moving.position)
            if whom:
                first = next(iter(whom))
                self.expected = first if first in self.state.requests else None
                told = ", ".join(
                    f"{name} ({cost})" if cost else name for name, cost in whom.items()
                )
                self.remark = f"{what} here: {told}. {self.remark}".rstrip()

    def go_to_finding(self, found: LocatedFinding, remark: str) -> Changes:
        """Show the moment of a finding, its sequence and its block selected."""
        self.go(lambda timeline, _: max(found.position, timeline.first), "")
        self.remark = f"{remark} {self.remark}".rstrip()
        finding = found.finding
        self.finding = found.number
        if finding.block is not None:
            self.block = finding.block
        request = self.state.requests.get(finding.request_id or "")
        seq_ids = [finding.seq_id] if finding.seq_id is not None else request and request.seq_ids
        for seq_id in seq_ids or ():
            if seq_id in self.state.sequences:
                self.choose(seq_id)
                break
        return EVERYTHING

    def sort_by(self, sort: Sort) -> None:
        self.view.sort = sort
        self.view.rebuild(self.state)

    def filter_by(self, wanted: Filter) -> None:
        self.view.filter = wanted
        self.view.rebuild(self.state)

    def search_for(self, wanted: Filter) -> None:
        """Mark what matches, and hide nothing."""
        self.view.search(self.state, wanted)

    def toggle_tree(self) -> None:
        """Let the sequences of one request stand together, or each for itself."""
        self.view.tree = not self.view.tree
        self.view.rebuild(self.state)

    def fold(self) -> bool:
        """Fold the family below the selected sequence, or that it is in, or unfold it.

        Returns whether there is anything to fold.
        """
        if self.selected is None:
            return False
        kin = self.view.tree_position(self.selected)
        if not kin.is_parent:
            if kin.parent is None:
                return False
            self.selected = kin.parent
        self.view.folded ^= {self.selected}
        self.view.update(self.state, [self.selected])
        return True

    def fold_all(self) -> None:
        """Fold every family, or unfold all if any is folded."""
        while (
            self.selected is not None
            and (parent := self.view.tree_position(self.selected).parent) is not None
        ):
            self.selected = parent
        self.view.fold_all()
        self.view.rebuild(self.state)

    def _replay(self, position: int) -> Changes:
        """Move what is replayed; where that fails, the link says so."""
        assert self.replay is not None
        self.replay.move(position)
        self._meter.sample(self.replay.state)
        return self._advance()

    def _look_back(self, position: int) -> Changes:
        """Show what was, while the source goes on."""
        assert self._past is not None
        try:
            touched: set[int] | None = self._past.move(position)
        except RecordingError as error:
            self.remark = f"That cannot be shown: {error}."
            touched = None
        self.state = self._past.state
        self.rates = self._meter.at(self.now)
        return self._arranged(touched)

    def _take_over(self) -> None:
        """Learn what the source has touched, whether or not the picture is held."""
        touched = self.source.drain()
        if self._measured is not self.source.state:
            self._measured, touched = self.source.state, None
        self.latencies.observe(self.source.state, ())  # time goes on even if nothing comes
        if touched is None or self._touched is None:
            self._touched = None
        elif self._touched:
            self._touched |= touched
        else:
            self._touched = touched

    def _advance(self) -> Changes:
        self._take_over()
        touched, self._touched = self._touched, set()
        if self.state is not self.source.state:
            self.state = self.source.state
            touched = None
        self.rates = self._meter.rates
        return self._arranged(touched)

    def _arranged(self, touched: set[int] | None) -> Changes:
        """Bring the view up to date with the state on show, of which `touched` changed."""
        ticked, self._second = self.second != self._second, self.second
        if touched is None:
            self.view.rebuild(self.state)
            return EVERYTHING
        moved = self.view.update(self.state, touched)
        if ticked:
            self.view.tick(self.state)
        return Changes(touched | moved if moved else touched, ticked)

    @property
    def _num_found(self) -> int:
        return -1 if self.review is None else self.review.version

    @property
    def _age_on_show(self) -> int:
        """The age of what is shown, which is displayed in whole seconds once nothing is heard."""
        return int(self.silence) if self.ages_by_itself else self._age
