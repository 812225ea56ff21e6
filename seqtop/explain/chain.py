"""The time of a request as a chain of parts that add up to its latency.

The time from the arrival to the end is divided at the start and the end of each step. A piece
belongs to a part by what the request did in it and, where it did nothing, by the cause. The time in
a step is prefill or decode if the request was in its batch; a request that waits has the cause that
the step gave, unless the step had been scheduled before the request arrived. The time between two
steps is that of the host for a request that runs; one that waits has the cause of the step before.
The causes are those of `seqtop.state.waits`. A part ends where the
request starts or stops running, and at its first token: the parts before that add up to the TTFT.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from seqtop.sequence import RequestMetrics
from seqtop.state.model import EngineData, RequestState
from seqtop.state.step_costs import has_graph, paced_seconds
from seqtop.state.wait_causes import (
    ARRIVING,
    BETWEEN_STEPS,
    IN_PROGRESS,
    OWN_TURN,
    PACED,
    head_reason,
)
from seqtop.state.wait_graph import queue_head
from seqtop.state.waits import is_parked
from seqtop.wire.batch import Member, members
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    Preemption,
    RequestArrived,
    Step,
    StreamingUpdate,
)
from seqtop.wire.snapshot import Span

PartKind: TypeAlias = Literal[
    "queued", "preempted", "swapped", "prefill", "decode", "unscheduled", "host", "unknown"
]
"""The occupation of a request in a part.

`preempted` and `swapped` are waits after a preemption. `unscheduled` is the time of steps without
the request although it runs, `host` the time between steps while it runs."""

MIXED_BATCH = "mixed_batch"
"""The cause of decodes in one batch with prefills of other requests."""
NO_CUDA_GRAPH = "no_cuda_graph"
"""The cause of decodes in a step that ran without a CUDA graph, alone."""
RECOMPUTE = "recompute"
"""The cause of a prefill after a preemption."""
NOT_RECORDED = "not_recorded"
"""The cause of a part whose steps are not recorded."""
UNKNOWN = "unknown"

MAX_PHASES = 256
"""The most times that a request starts or stops running whose parts are told apart."""
_MAX_OTHERS = 1_000
"""The most other requests that are counted for one part."""


class BlockHolder(msgspec.Struct):
    """The request that held the most blocks while another waited for blocks."""

    request_id: str
    num_blocks: int
    """The blocks in its tables."""
    num_used_blocks: int
    """The blocks in all tables."""
    num_prompt_tokens: int
    admitted_step: int | None
    """The step in which it was last admitted; `None` if that is not recorded."""


class Part(msgspec.Struct):
    """A part of a request's time. Intervals of the same kind and cause are one part."""

    kind: PartKind
    cause: str
    """A `WaitCause`, an engine's own status, or one of the constants above; empty if `kind` is
    enough."""
    start: float
    """Seconds from the arrival to its first piece."""
    step: int | None
    """The step in which it begins, for time between steps the one that its longest piece delayed.

    `None` if that is not recorded."""
    position: int | None
    """The position of that step on the timeline."""
    end: float = 0.0
    """Seconds from the arrival to the end of its last piece."""
    seconds: float = 0.0
    """The seconds of all pieces; fewer than from `start` to `end` if others lie between them."""
    num_steps: int = 0
    num_tokens: int = 0
    """Tokens of the request computed in this part."""
    scheduler: float = 0.0
    """The seconds of its steps in which the scheduler ran, if it computes something."""
    longest: float = 0.0
    """The seconds of its longest piece."""
    longest_step: int | None = None
    """The step of that piece, or the one that it delayed; `None` if that is not recorded."""
    before_first_token: bool = False
    others: Counter[str] = msgspec.field(default_factory=Counter)
    """Other requests: those at the head of the queue before it, with the number of steps; those
    whose prefills were in its batches, with the number of their tokens."""
    is_behind: bool = False
    """True if the cause was given for a request before it in the queue."""
    num_missing: int = 0
    """The amount that was missing at its beginning, as in `WaitReason`; 0 if unknown."""
    preemption: Preemption | None = None
    """The preemption that began the wait."""
    holder: BlockHolder | None = None
    """The request that held the most blocks when a wait for blocks began, if known."""
    has_holder: bool = False
    """True if `holder` has been looked up."""


class _Place(NamedTuple):
    """A step, and its position on the timeline."""

    step: int | None
    position: int | None


class _Cause(NamedTuple):
    """The cause of a wait in a step."""

    cause: str
    head: str | None = None
    """The request for which the cause was given, if it is another."""
    num_missing: int = 0


class Piece(NamedTuple):
    """A piece of a request's time: all of a part, or what one step or pause adds to it."""

    kind: PartKind
    cause: str
    seconds: float
    head: str | None
    """The request before it in the queue for which the cause was given, if it is another."""
    preemption: Preemption | None
    """The last preemption of the request."""
    between: str = ""
    """`between_steps` or `paced` for time between two steps."""


_NOWHERE = _Place(None, None)
_NO_CAUSE = _Cause(BETWEEN_STEPS)
"""The cause of the time after a step that gave none."""


class IndexedStep:
    """A step by request and sequence, so that each of many chains reads only its own part.

    Args:
        step: The step.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.batch = list(members(step))
        self.members: defaultdict[str, list[Member]] = defaultdict(list)
        """The sequences in the batch by request."""
        for member in self.batch:
            self.members[member.request_id].append(member)
        self.statuses: dict[int, tuple[int, str]] = {}
        """By updated sequence, its number in the step, and the engine's own status."""
        self.parked: set[int] = set()
        """The updated sequences that wait for something other than their turn."""
        self.seq_ids: defaultdict[str, list[int]] = defaultdict(list)
        """The updated sequences by request, where the step says whose they are."""
        for number, update in enumerate(step.sequences):
            self.statuses[update.seq_id] = number, update.engine_status
            if is_parked(update):
                self.parked.add(update.seq_id)
            if update.request_id is not None:
                self.seq_ids[update.request_id].append(update.seq_id)
        self.preemptions = {preemption.request_id: preemption for preemption in step.preemptions}
        self.reasons = {reason.request_id: reason for reason in reversed(step.wait_reasons)}
        self.head = head_reason(step.wait_reasons)


class Chain:
    """Divides the time of one request; fed with the events from before its arrival on.

    Args:
        request: The request, with its metrics as far as they are known.
        on_piece: Called with each piece, in order of time.
    """

    def __init__(
        self, request: RequestState, on_piece: Callable[[Piece], object] | None = None
    ) -> None:
        self._on_piece = on_piece
        metrics = request.metrics
        self.request_id = request.request_id
        self.arrival_time = metrics.arrival_time
        self.first_token_time = metrics.first_token_time
        self.finished_time = metrics.finished_time
        self.is_finished = False
        """True if all time up to the end is divided."""
        self.budget: int | None = None
        """The token budget of a step, if it is known."""
        self._parts: dict[tuple[object, ...], Part] = {}
        self._seq_ids = {*request.seq_ids}
        self._time = metrics.arrival_time
        """The time up to which the chain is complete, epoch seconds."""
        self._phase = 0
        self._wait: PartKind | None = "queued"
        """The kind of the present wait; `None` while the request runs."""
        self._preemption: Preemption | None = None
        self._joined = math.inf
        """The time at which it joined the waiting queue, epoch seconds; later than any step before
        it has."""
        self._own_status = ""
        """The engine's own name for what the request waits for."""
        self._last_place = _NOWHERE
        self.last_end = -math.inf
        """The end of the last step, epoch seconds."""
        self._last_cause = _NO_CAUSE
        """The cause that the last step gave, which holds up to the next one."""

    @property
    def parts(self) -> list[Part]:
        """The parts so far, in order of their beginnings."""
        return list(self._parts.values())

    def open_part(self, now: float) -> Part | None:
        """Returns the part from the end of the last step to `now`, epoch seconds."""
        end = now if self.finished_time is None else self.finished_time
        if not 0 < end - self._time < math.inf:
            return None
        kind: PartKind = self._wait or "unknown"
        part = Part(kind, self._open_cause(), self._time - self.arrival_time, None, None)
        part.seconds = part.longest = end - self._time
        part.before_first_token = self.first_token_time is None
        return part

    def resume(self, request: RequestState | None, time: float) -> None:
        """Continues from a state that the events so far do not lead to.

        The time up to there is divided by the spans of the request.

        Args:
            request: The request in that state; `None` if it is not there.
            time: The time of that state, epoch seconds.
        """
        if request is None:
            return
        self._learn(request.metrics)
        self._fill(request.spans, time)
        self._joined = -math.inf
        kind = request.spans[-1].kind if request.spans else "queued"
        waits = kind not in ("prefill", "decode")
        self._wait = kind if waits else None
        if request.finish_reason is not None:
            self.end()

    def follow(self, state: EngineData) -> None:
        """Takes the end of the last step, and what the request waits for, from a state."""
        self.last_end = state.blocked.until or -math.inf
        request, head = state.requests.get(self.request_id), queue_head(state)
        if request is not None and request.metrics.arrival_time != self.arrival_time:
            request = None  # an earlier one with the same id
        if request is not None and request.seq_ids:
            self._own_status = state.sequences[request.seq_ids[0]].engine_status
        if request is not None and request.wait_reason is not None:
            reason = request.wait_reason
            self._last_cause = _Cause(reason.cause, num_missing=max(reason.num_missing, 0))
        elif state.blocked.cause:
            name = None if head is None else head.request_id
            self._last_cause = _Cause(state.blocked.cause, name)
        else:
            self._last_cause = _NO_CAUSE

    def apply(self, position: int, event: Event) -> None:
        """Divides the time up to the end of `event`, which is at `position` on the timeline."""
        match event:
            case Step():
                self.apply_step(position, IndexedStep(event))
            case EngineInfo():
                self.budget = event.max_num_batched_tokens
            case RequestArrived() if event.request_id == self.request_id:
                self._join(self.arrival_time)
                self._own_status = event.engine_status
                self._seq_ids.update(event.seq_ids)
            case StreamingUpdate() if event.request_id == self.request_id:
                if self._wait is None:
                    self._until(event.time, "unknown", "", self._last_place)
                else:
                    self._gap(event.time, self._last_place, 0.0)
                self._start_wait("queued", None)
                self._join(event.time)
                self._own_status = ""

    def end(self) -> None:
        """Divides the time after the last step, if the request has finished."""
        if self.finished_time is not None:
            kind: PartKind = self._wait or "unknown"
            self._until(self.finished_time, kind, self._open_cause(), self._last_place)
            self.is_finished = True

    def close(self, now: float) -> None:
        """Divides the time up to `now`, epoch seconds, if the request has not finished."""
        if not self.is_finished:
            kind: PartKind = self._wait or "unknown"
            end = now if self.finished_time is None else self.finished_time
            self._until(end, kind, self._open_cause(), self._last_place)

    def _learn(self, metrics: RequestMetrics) -> None:
        """Takes over the times of the first token and the end, as soon as they are known.

        An engine may keep a request after its end, while its KV cache is fetched.
        """
        first = metrics.first_token_time
        # What is divided already is before the first token.
        if self.first_token_time is None and first is not None and first >= self._time:
            self.first_token_time = first
        if self.finished_time is None:
            self.finished_time = metrics.finished_time

    def _join(self, time: float) -> None:
        self._joined = max(time, self.last_end)

    def _open_cause(self) -> str:
        """Returns the cause of the time since the last step."""
        own = self._wait is not None and self._own_status not in OWN_TURN
        return self._own_status if own else IN_PROGRESS

    def apply_step(self, position: int, indexed: IndexedStep) -> None:
        """Divides the time up to the end of a step, which is at `position` on the timeline."""
        step = indexed.step
        place = _Place(step.step, position)
        if (told := step.metrics.get(self.request_id)) is not None:
            self._learn(told)
        begin = max(step.start_time, self._time)
        self._gap(begin, place, paced_seconds(step.stats, begin - self.last_end))
        self._seq_ids.update(indexed.seq_ids.get(self.request_id, ()))
        statuses = [
            indexed.statuses[seq_id] for seq_id in self._seq_ids if seq_id in indexed.statuses
        ]
        if statuses:
            _, self._own_status = max(statuses)
        if (preemption := indexed.preemptions.get(self.request_id)) is not None:
            kind: PartKind = "swapped" if preemption.mode == "swap" else "preempted"
            self._start_wait(kind, preemption)
        own = indexed.members.get(self.request_id)
        is_idle = not indexed.parked.isdisjoint(self._seq_ids)
        if is_idle and not own and self._wait is None:
            self._start_wait("queued", None)
        if own:
            self._run(step, place, indexed.batch, own)
            if is_idle:
                self._start_wait("queued", None)
        elif self._wait is None:
            tokens = step.stats.num_prefill_tokens + step.stats.num_decode_tokens
            is_spent = self.budget is not None and tokens >= self.budget
            cause = "token_budget" if is_spent else UNKNOWN
            self._until(step.time, "unscheduled", cause, place, num_steps=1)
        else:
            known = self._wait_cause(indexed)
            others = Counter(() if known.head is None else (known.head,))
            self._until(
                step.time,
                self._wait,
                known.cause,
                place,
                is_behind=known.head is not None,
                num_steps=1,
                num_missing=known.num_missing,
                others=others,
            )
        self._last_place, self.last_end = place, step.time
        self._last_cause = self._given_cause(indexed) or _NO_CAUSE

    def _gap(self, end: float, place: _Place, paced: float) -> None:
        """Divides the time between two steps, the later of which is at `place`.

        Args:
            end: The end of that time, epoch seconds.
            place: The later step.
            paced: The seconds of it in which the engine waited on purpose.
        """
        paced_end = self.last_end + paced if paced > 0 else -math.inf
        if self._wait is None:
            self._until(paced_end, "host", PACED, place)
            self._until(end, "host", "", place)
        elif self._own_status not in OWN_TURN:
            self._until(end, self._wait, self._own_status, place)
        elif self._joined == math.inf:
            self._until(end, self._wait, ARRIVING, place)
        else:
            cause, head, num_missing = self._last_cause
            for until, between in ((paced_end, PACED), (end, BETWEEN_STEPS)):
                self._until(
                    until,
                    self._wait,
                    cause,
                    place,
                    is_behind=head is not None,
                    num_missing=num_missing,
                    others=Counter({} if head is None else {head: 0}),
                    between=between,
                )

    def _run(self, step: Step, place: _Place, batch: list[Member], own: list[Member]) -> None:
        if own[0].update is None:
            self._own_status = ""
        if self._wait is not None:
            self._phase += 1
            self._wait = None
        is_prompt = own[0].is_prompt
        kind: PartKind = "prefill" if is_prompt else "decode"
        others: Counter[str] = Counter()
        cause = ""
        if is_prompt and self._preemption and self._preemption.mode == "recompute":
            cause = RECOMPUTE
        if not is_prompt and step.stats.num_prefill_tokens > 0:
            for member in batch:
                if member.is_prompt:
                    others[member.request_id] += member.num_tokens
            cause = MIXED_BATCH if others else ""
        elif not is_prompt and has_graph(step.stats) is False:
            cause = NO_CUDA_GRAPH
        num_tokens = sum(member.num_kept_tokens for member in own)
        self._until(
            step.time,
            kind,
            cause,
            place,
            num_steps=1,
            num_tokens=num_tokens,
            others=others,
            scheduler=step.stats.scheduler_time or 0.0,
        )

    def _wait_cause(self, indexed: IndexedStep) -> _Cause:
        """Returns the cause of the wait in a step."""
        if self._own_status not in OWN_TURN:
            return _Cause(self._own_status)
        if indexed.step.start_time < self._joined:
            return _Cause(ARRIVING)
        return self._given_cause(indexed) or _Cause(UNKNOWN)

    def _given_cause(self, indexed: IndexedStep) -> _Cause | None:
        """Returns the cause that a step gave for it, or for the head of the queue before it."""
        if (reason := indexed.reasons.get(self.request_id)) is not None:
            return _Cause(reason.cause, num_missing=max(reason.num_missing, 0))
        head = indexed.head
        if head is None:
            return None
        return _Cause(head.cause, head.request_id, max(head.num_missing, 0))

    def _start_wait(self, kind: PartKind, preemption: Preemption | None) -> None:
        self._phase += 1
        self._wait, self._preemption = kind, preemption

    def _until(
        self,
        end: float,
        kind: PartKind,
        cause: str,
        place: _Place,
        *,
        is_behind: bool = False,
        num_steps: int = 0,
        num_tokens: int = 0,
        num_missing: int = 0,
        others: Counter[str] | None = None,
        scheduler: float = 0.0,
        between: str = "",
    ) -> None:
        """Adds the piece from the end of the last one to `end`, epoch seconds."""
        if self.finished_time is not None:
            end = min(end, self.finished_time)
        first = self.first_token_time
        if first is not None and self._time < first < end:
            self._until(
                first,
                kind,
                cause,
                place,
                is_behind=is_behind,
                num_missing=num_missing,
                others=others,
                between=between,
            )
        seconds = end - self._time
        if not 0 < seconds < math.inf:
            return
        before_first = first is None or end <= first
        key = (min(self._phase, MAX_PHASES), kind, cause, is_behind, before_first)
        part = self._parts.get(key)
        if part is None:
            start = self._time - self.arrival_time
            part = self._parts[key] = Part(kind, cause, start, *place)
            part.before_first_token, part.is_behind = before_first, is_behind
            part.num_missing = num_missing
            part.preemption = self._preemption if kind == self._wait else None
        if seconds > part.longest:
            part.longest, part.longest_step = seconds, place.step
            if kind == "host" or cause in (BETWEEN_STEPS, PACED):
                part.step, part.position = place
        part.seconds += seconds
        part.end = end - self.arrival_time
        part.num_steps += num_steps
        part.scheduler += min(max(scheduler, 0.0), seconds)
        part.num_tokens += num_tokens
        if others and len(part.others) < _MAX_OTHERS:
            part.others.update(others)
        self._time = end
        if self._on_piece is not None:
            head = next(iter(others)) if is_behind and others else None
            self._on_piece(Piece(kind, cause, seconds, head, self._preemption, between))

    def _fill(self, spans: Sequence[Span], end: float) -> None:
        """Divides the time up to `end`, whose steps are not recorded, by `spans`."""
        for span in spans:
            self._until(min(span.start, end), "unknown", NOT_RECORDED, _NOWHERE)
            close = end if span.end is None else min(span.end, end)
            self._until(close, span.kind, NOT_RECORDED, _NOWHERE)
        self._until(end, "unknown", NOT_RECORDED, _NOWHERE)
