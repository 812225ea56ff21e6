"""Measurements of others about the requests of a recording, joined by the id of the request.

AIPerf writes what the client saw to `profile_export.jsonl`, and Dynamo what its front end saw in
`dynamo.request.trace.v1`. Their TTFT is longer than the engine's by the time before the engine: the
network, HTTP, the tokenizer, a router.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from seqtop.export.lifecycle import RequestLifecycle
from seqtop.process import files
from seqtop.sequence import latency

MAX_BYTES = 2**30
"""The largest file that is read, uncompressed."""
COLUMNS = (
    "measured_by",
    "measured_ttft",
    "measured_e2e_latency",
    "front_end_time",
    "session_id",
    "turn",
    "tool_pause",
)
"""The columns of a request that was joined."""

_DYNAMO = "dynamo.request.trace.v1"
_PER_SECOND = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0, "sec": 1.0}
_API = re.compile("chatcmpl-|cmpl-")
_SUFFIX = re.compile("-[0-9a-f]{8}$")
_PROMPT = re.compile(r"-\d{1,4}$")


class MeasuredError(Exception):
    """A file cannot be joined; `str()` is a sentence without the file's name."""


class RequestMeasurement(msgspec.Struct):
    """Measurements of one request. Durations are seconds; `None` is unknown."""

    measured_by: str
    """`aiperf` or `dynamo`."""
    ttft: float | None = None
    e2e_latency: float | None = None
    session_id: str | None = None
    """A conversation, or a run of an agent."""
    turn: int | None = None
    """The number of the request in its session, from 0."""
    tool_pause: float | None = None
    """Seconds in which tools ran since the session's request before."""


class _Metadata(msgspec.Struct):
    x_request_id: str | None = None
    x_correlation_id: str | None = None
    conversation_id: str | None = None
    turn_index: int | None = None


class _Metric(msgspec.Struct):
    value: Any = None
    unit: str = ""

    def seconds(self) -> float | None:
        divisor = _PER_SECOND.get(self.unit)
        if divisor is None or not isinstance(self.value, int | float) or abs(self.value) > 1e18:
            return None
        return self.value / divisor


class _AgentContext(msgspec.Struct):
    session_id: str | None = None


class _Request(msgspec.Struct):
    request_id: str
    x_request_id: str | None = None
    request_received_ms: float | None = None
    total_time_ms: float | None = None
    ttft_ms: float | None = None


class _Tool(msgspec.Struct):
    started_at_unix_ms: float | None = None
    ended_at_unix_ms: float | None = None
    duration_ms: float | None = None


class _Line(msgspec.Struct, rename={"schema_": "schema"}):
    """A line of either format."""

    metadata: _Metadata | None = None
    metrics: dict[str, _Metric] = {}
    schema_: str = ""
    event_type: str = ""
    event_time_unix_ms: float | None = None
    agent_context: _AgentContext | None = None
    session_id: str | None = None
    request: _Request | None = None
    tool: _Tool | None = None


class MeasuredRequests:
    """Measurements of others, by the ids that they gave to requests.

    Args:
        paths: Files of AIPerf or Dynamo, also compressed by gzip. Of two that measured the same
            request, the first one counts, and the second adds what it did not know.

    Raises:
        OSError: A file cannot be read.
        MeasuredError: A file is of neither format; the message names it.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_id: dict[str, RequestMeasurement] = {}
        self._joined: set[str] = set()
        self._used: set[str] = set()
        for path in paths:
            try:
                lines = list(_decode(files.read(path, MAX_BYTES + 1)))
            except MeasuredError as error:
                raise MeasuredError(f"{path} {error}") from error
            self._add_aiperf(lines)
            self._add_dynamo(lines)

    def of(self, lifecycle: RequestLifecycle) -> RequestMeasurement | None:
        """Returns what was measured about a request; `None` if nothing was."""
        request = lifecycle.request
        for name in (request.request_id, request.parent_request_id):
            for candidate in _client_ids(name):
                if candidate in self._by_id:
                    self._joined.add(request.request_id)
                    self._used.add(candidate)
                    return self._by_id[candidate]
        return None

    @property
    def num_joined(self) -> int:
        """Requests of the recording for which `of` has found a measurement so far."""
        return len(self._joined)

    def not_found(self) -> list[str]:
        """Returns the ids of measurements that `of` has not returned so far, in file order.

        Of a request with two ids, the first one.
        """
        names: dict[int, str] = {}
        for name, measured in self._by_id.items():
            names.setdefault(id(measured), name)
        for name in self._used:
            names.pop(id(self._by_id[name]), None)
        return [*names.values()]

    def columns(self, lifecycle: RequestLifecycle) -> dict[str, str | float | None]:
        """Returns the values of `COLUMNS` for a request. Durations are seconds."""
        measured = self.of(lifecycle)
        if measured is None:
            return dict.fromkeys(COLUMNS)
        ttft = latency.ttft(lifecycle.request.metrics)
        front_end = None
        if measured.ttft is not None and ttft is not None:
            front_end = measured.ttft - ttft
        return {
            "measured_by": measured.measured_by,
            "measured_ttft": measured.ttft,
            "measured_e2e_latency": measured.e2e_latency,
            "front_end_time": front_end,
            "session_id": measured.session_id,
            "turn": measured.turn,
            "tool_pause": measured.tool_pause,
        }

    def _add(self, names: Sequence[str], measured: RequestMeasurement) -> None:
        """Adds a measurement under all ids of its request."""
        known = next((self._by_id[name] for name in names if name in self._by_id), measured)
        for name in names:
            self._by_id.setdefault(name, known)
        if known.ttft is None and known.e2e_latency is None:
            known.measured_by = measured.measured_by
            known.ttft, known.e2e_latency = measured.ttft, measured.e2e_latency
        if known.session_id is None:
            known.session_id, known.turn = measured.session_id, measured.turn
        if known.tool_pause is None:
            known.tool_pause = measured.tool_pause

    def _add_aiperf(self, lines: Iterable[_Line]) -> None:
        for line in lines:
            metadata = line.metadata
            if metadata is None or metadata.x_request_id is None:
                continue
            ttft = line.metrics.get("time_to_first_token")
            whole = line.metrics.get("request_latency")
            self._add(
                [metadata.x_request_id],
                RequestMeasurement(
                    measured_by="aiperf",
                    ttft=None if ttft is None else ttft.seconds(),
                    e2e_latency=None if whole is None else whole.seconds(),
                    session_id=metadata.x_correlation_id or metadata.conversation_id,
                    turn=metadata.turn_index,
                ),
            )

    def _add_dynamo(self, lines: Iterable[_Line]) -> None:
        sessions: defaultdict[str, list[tuple[float, _Request]]] = defaultdict(list)
        tools: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for line in lines:
            session = line.agent_context and line.agent_context.session_id
            session = session or line.session_id or ""
            if line.schema_ != _DYNAMO:
                continue
            if line.request is not None:
                sessions[session].append((line.request.request_received_ms or 0.0, line.request))
            elif line.tool is not None and (interval := _interval(line)) is not None:
                tools[session].append(interval)
        for session, requests in sessions.items():
            requests.sort(key=lambda item: item[0])
            starts = [start for start, _ in requests]
            pauses: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
            for interval in tools[session]:
                pauses[bisect_left(starts, interval[1])].append(interval)
            for turn, (_, request) in enumerate(requests):
                measured = RequestMeasurement(
                    measured_by="dynamo",
                    ttft=_seconds(request.ttft_ms),
                    e2e_latency=_seconds(request.total_time_ms),
                    session_id=session or None,
                    turn=turn if session else None,
                    tool_pause=_union(pauses[turn]) if session and pauses[turn] else None,
                )
                self._add([*filter(None, (request.x_request_id, request.request_id))], measured)


def _client_ids(name: str) -> Iterator[str]:
    """Yields what the client may have named a request.

    vLLM puts the API before the client's id; the number of the prompt and random letters follow.
    """
    yield name
    if api := _API.match(name):
        name = name[api.end() :]
    yield name
    without = _SUFFIX.sub("", name)
    yield without
    yield _PROMPT.sub("", name)
    yield _PROMPT.sub("", without)


def _decode(data: bytes) -> Iterator[_Line]:
    try:
        data = files.decompressed(data, MAX_BYTES)
    except ValueError as error:
        raise MeasuredError(str(error)) from error
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(data.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MeasuredError(f"cannot be joined: line {number}: {error}") from error
        if line.metadata is None and line.schema_ != _DYNAMO:
            raise MeasuredError(
                f"cannot be joined: line {number} is neither AIPerf's profile_export.jsonl nor"
                f" {_DYNAMO}"
            )
        yield line


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _interval(line: _Line) -> tuple[float, float] | None:
    """Returns the start and the end of a tool's run, milliseconds; `None` if they are unknown."""
    tool = line.tool
    if tool is None or line.event_type not in {"tool_end", "tool_error"}:
        return None
    end = line.event_time_unix_ms if tool.ended_at_unix_ms is None else tool.ended_at_unix_ms
    start = tool.started_at_unix_ms
    if start is None and end is not None and tool.duration_ms is not None:
        start = end - tool.duration_ms
    return None if start is None or end is None else (start, max(start, end))


def _union(intervals: list[tuple[float, float]]) -> float:
    """Returns the seconds that intervals of milliseconds cover; those that overlap count once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total / 1e3
