"""Traces of `torch.profiler`, to be put below a recording on the same clock.

Kineto, which writes them as JSON in the Trace Event Format, counts microseconds from
`baseTimeNanoseconds` after the epoch. Slices, instants and the arrows from a launch to its kernel
are taken over.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from seqtop.export import track_event
from seqtop.export.track_event import Argument, Arguments, EventType
from seqtop.process import files

MAX_BYTES = 2**30
"""The largest trace that is read, uncompressed: about two million events."""
MAX_LANES = 32
"""The most slices of one thread that overlap without being nested; each takes a track."""
_LONGEST_MICROSECONDS = 4e15

_Id = int | str


class TorchTraceError(Exception):
    """A file is no trace that can be merged; `str()` is a sentence without the file's name."""


class _Event(msgspec.Struct, gc=False):
    """An event of the format; those of other kinds have other types of values."""

    ph: str
    name: str = ""
    cat: str = ""
    pid: _Id = 0
    tid: _Id = 0
    ts: float = 0.0
    dur: float = 0.0
    id: _Id = 0
    args: dict[str, Any] = {}


class _DistributedInfo(msgspec.Struct):
    rank: int | None = None


class _Document(msgspec.Struct):
    trace_events: list[_Event] = msgspec.field(name="traceEvents")
    base: int | None = msgspec.field(name="baseTimeNanoseconds", default=None)
    distributed: _DistributedInfo | None = msgspec.field(name="distributedInfo", default=None)


class _Slice(NamedTuple):
    start: int
    end: int
    event: _Event


class TorchTrace:
    """The events of a trace of `torch.profiler`.

    Args:
        path: A JSON file, which may be compressed by gzip.

    Raises:
        OSError: The file cannot be read.
        TorchTraceError: It is no such trace.
    """

    def __init__(self, path: str) -> None:
        document = _decode(files.read(path, MAX_BYTES + 1))
        if document.base is None:
            raise TorchTraceError(
                "it has no baseTimeNanoseconds, without which its times belong to no clock"
            )
        self._base = document.base
        self.rank = document.distributed and document.distributed.rank
        """The rank of the process in `torch.distributed`; `None` if it was not initialized."""
        self._names: dict[tuple[_Id, _Id], str] = {}
        self._labels: dict[_Id, str] = {}
        self._slices: defaultdict[tuple[_Id, _Id], list[_Slice]] = defaultdict(list)
        self._starts: defaultdict[tuple[_Id, _Id, int], list[_Id]] = defaultdict(list)
        self._ends: defaultdict[tuple[_Id, _Id, int], list[_Id]] = defaultdict(list)
        for event in document.trace_events:
            self._add(event)
        self._lanes = {track: _lanes(slices) for track, slices in self._slices.items()}

    def _add(self, event: _Event) -> None:
        if event.ph == "M":
            self._name(event)
            return
        start = self._time(event.ts)
        track = (event.pid, event.tid)
        if event.ph == "X":
            end = max(self._time(event.ts + event.dur), start)
            self._slices[track].append(_Slice(start, end, event))
        elif event.ph in {"i", "I"}:
            self._slices[track].append(_Slice(start, start, event))
        elif event.ph == "s":
            self._starts[*track, start].append(event.id)
        elif event.ph == "f":
            self._ends[*track, start].append(event.id)

    def _name(self, event: _Event) -> None:
        match event.name:
            case "process_labels":
                self._labels[event.pid] = str(event.args.get("labels", ""))
            case "thread_name":
                self._names[event.pid, event.tid] = str(event.args.get("name", ""))

    def _time(self, microseconds: float) -> int:
        """Converts to nanoseconds since the epoch."""
        if not math.isfinite(microseconds):
            microseconds = 0.0
        limit = _LONGEST_MICROSECONDS
        time = self._base + round(min(max(microseconds, -limit), limit) * 1e3)
        return min(max(time, 0), 2**63 - 1)

    def packets(self, process: int, ids: Iterator[int], label: str = "") -> Iterator[bytes]:
        """Yields the packets of its threads, and of the streams of its GPUs.

        Args:
            process: The process to which they are added.
            ids: New numbers for tracks and arrows.
            label: The beginning of the threads' names.
        """
        flows: dict[_Id, int] = {}
        # CPU before GPU 0: what launches a kernel is above it.
        for (pid, tid), lanes in sorted(
            self._lanes.items(),
            key=lambda item: (self._labels.get(item[0][0], ""), *map(str, item[0])),
        ):
            thread = next(ids)
            names = (self._labels.get(pid), self._names.get((pid, tid)) or f"{pid} {tid}")
            name = " ".join(filter(None, (label, *names))).strip() or "torch.profiler"
            yield track_event.thread(thread, process, thread, name)
            for lane, contents in enumerate(lanes):
                track = thread
                if lane:
                    track = next(ids)
                    yield track_event.track(track, thread, name)
                yield from self._lane(track, contents, flows, ids)

    def _lane(
        self, track: int, slices: list[_Slice], flows: dict[_Id, int], ids: Iterator[int]
    ) -> Iterator[bytes]:
        """Yields the packets of slices that are nested or follow each other."""
        ends: list[int] = []

        def flow(flow_id: _Id) -> int:
            if flow_id not in flows:
                flows[flow_id] = next(ids)
            return flows[flow_id]

        for start, end, event in slices:
            while ends and ends[-1] <= start:
                yield track_event.event(EventType.SLICE_END, track, ends.pop())
            key = (event.pid, event.tid, start)
            is_instant = event.ph != "X"
            yield track_event.event(
                EventType.INSTANT if is_instant else EventType.SLICE_BEGIN,
                track,
                start,
                event.name or "unnamed",
                event.cat,
                _arguments(event.args),
                # An arrow belongs to one of several slices that start together: the first.
                map(flow, self._starts.pop(key, ())),
                map(flow, self._ends.pop(key, ())),
            )
            if not is_instant:
                ends.append(end)
        while ends:
            yield track_event.event(EventType.SLICE_END, track, ends.pop())


def _decode(data: bytes) -> _Document:
    try:
        data = files.decompressed(data, MAX_BYTES)
    except ValueError as error:
        raise TorchTraceError(f"it {error}") from error
    try:
        return msgspec.json.decode(data, type=_Document, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TorchTraceError(f"it is no trace of torch.profiler: {error}") from error


def _lanes(slices: list[_Slice]) -> list[list[_Slice]]:
    """Returns lists of slices that are nested or follow each other; most threads have one."""
    rest = sorted(slices, key=lambda slice_: (slice_.start, -slice_.end))
    lanes: list[list[_Slice]] = []
    while rest:
        if len(lanes) == MAX_LANES:
            raise TorchTraceError(f"more than {MAX_LANES} slices of one thread overlap")
        lane: list[_Slice] = []
        others: list[_Slice] = []
        ends: list[int] = []
        for slice_ in rest:
            while ends and ends[-1] <= slice_.start:
                ends.pop()
            if ends and slice_.end > ends[-1]:
                others.append(slice_)
            else:
                lane.append(slice_)
                ends.append(slice_.end)
        lanes.append(lane)
        rest = others
    return lanes


def _arguments(arguments: dict[str, Any]) -> Arguments:
    """Returns plain values as they are, and others as JSON."""
    shown: dict[str, Argument | None] = {}
    for name, value in arguments.items():
        is_plain = isinstance(value, str | int | float)
        shown[name] = value if is_plain else msgspec.json.encode(value).decode()
    return shown
