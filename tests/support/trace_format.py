"""Perfetto's native traces, decoded with Perfetto's own protos."""

import importlib
from collections import defaultdict
from typing import Any, NamedTuple

import pytest

_PROTOS = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4


class Slice(NamedTuple):
    name: str
    start: int
    end: int
    depth: int
    args: dict[str, Any]


class Instant(NamedTuple):
    name: str
    track: str
    time: int
    args: dict[str, Any]


class Trace:
    """The contents of a trace. Times are nanoseconds since the epoch.

    Fails where a field is unknown, or slices do not nest. Skips the test without Perfetto's protos.
    """

    def __init__(self, data: bytes) -> None:
        protos: Any = pytest.importorskip(_PROTOS, reason="perfetto is not installed")
        self.message = protos.Trace()
        assert self.message.ParseFromString(data) == len(data)
        self.message.DiscardUnknownFields()
        assert self.message.ByteSize() == len(data), "a field is unknown, or has another type"
        self.processes: dict[str, int] = {}
        self.threads: dict[int, str] = {}
        self.counters: dict[str, list[int]] = {}
        self.slices: defaultdict[str, list[Slice]] = defaultdict(list)
        """By name of the thread or track."""
        self.instants: list[Instant] = []
        self.flows: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        """By id, the names of the tracks and events from which and to which an arrow leads."""
        self._counters: dict[int, str] = {}
        self._open: defaultdict[int, list[tuple[str, int, dict[str, Any]]]] = defaultdict(list)
        for packet in self.message.packet:
            if packet.HasField("track_descriptor"):
                self._declare(packet.track_descriptor)
            elif packet.HasField("track_event"):
                self._add(packet.track_event, packet.timestamp)
        assert not any(self._open.values()), "a slice does not end"

    def lines(self) -> str:
        """One line a packet."""
        text_format = importlib.import_module("google.protobuf.text_format")
        packets = self.message.packet
        return "".join(text_format.MessageToString(it, as_one_line=True) + "\n" for it in packets)

    def _declare(self, track: Any) -> None:
        if track.HasField("process"):
            self.processes[track.process.process_name] = track.process.pid
        elif track.HasField("counter"):
            self._counters[track.uuid] = track.name
            self.counters[track.name] = []
        else:
            assert track.uuid not in self.threads
            self.threads[track.uuid] = track.thread.thread_name or track.name

    def _add(self, event: Any, time: int) -> None:
        if event.type == _COUNTER:
            self.counters[self._counters[event.track_uuid]].append(event.counter_value)
            return
        track, open_ = self.threads[event.track_uuid], self._open[event.track_uuid]
        args = {arg.name: getattr(arg, arg.WhichOneof("value")) for arg in event.debug_annotations}
        for flow in (*event.flow_ids, *event.terminating_flow_ids):
            self.flows[flow].append((track, event.name))
        if event.type == _BEGIN:
            open_.append((event.name, time, args))
        elif event.type == _END:
            name, start, args = open_.pop()
            assert start <= time
            self.slices[track].append(Slice(name, start, time, len(open_), args))
        else:
            assert event.type == _INSTANT
            self.instants.append(Instant(event.name, track, time, args))
