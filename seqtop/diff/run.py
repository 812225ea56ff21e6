"""The decisions of a recorded run: which requests each step admitted, preempted and ran.

Requests are numbered in order of arrival, so that the decisions of two runs can be compared even if
their ids differ. Only decisions are stored, no text and no block tables.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import Timeline
from seqtop.sequence import RequestMetrics, SequenceStatus, latency
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.state.waits import wait_until
from seqtop.wire.batch import block_moves, members, num_iterations, num_lookahead_slots
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    RequestFinished,
    Step,
    StepStats,
    StreamingUpdate,
    WaitCause,
)

SERVED = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
"""The statuses of requests that ended with a complete output."""
_SHORTEST_WAIT = 1e-6
"""Seconds below which a difference of sums is an error of rounding."""


class StepDecisions(NamedTuple):
    """The decisions of one step. Requests are given by their numbers."""

    step: int
    position: int
    """The position of the step on the timeline."""
    arrived: tuple[int, ...]
    """Requests that arrived since the step before."""
    ended: tuple[tuple[int, str], ...]
    """Requests that ended since the step before, with the name of their status."""
    preempted: tuple[tuple[int, int | None, str], ...]
    """Preempted requests, each with the one that it made room for, and the mode."""
    admitted: tuple[tuple[int, int], ...]
    """Waiting requests that were scheduled, each with the tokens found in the prefix cache."""
    chunks: tuple[tuple[int, int], ...]
    """Requests in the batch with a part of a prompt or several tokens, and the number of tokens."""
    decodes: tuple[int, ...]
    """Further requests in the batch, with one token each."""
    moves: tuple[int, int, int]
    """The blocks that were swapped in, swapped out, and copied before the step."""
    lookahead: tuple[int, int]
    """The slots that decodes had for further tokens, and the iterations of the worker."""
    tokens: int
    """A hash of the sampled tokens."""
    waits: tuple[tuple[int, WaitCause, int], ...]
    """Requests that were left waiting, each with the cause and the missing amount."""
    stats: StepStats


class RunRequest(msgspec.Struct):
    """A request of a run, and its figures so far. Times are epoch seconds."""

    request_id: str
    num_prompt_tokens: int
    priority: int
    metrics: RequestMetrics
    num_output_tokens: int = 0
    num_cached_tokens: int | None = None
    """Tokens found in the prefix cache at the first admission."""
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    num_sequences: int = 1
    prompt_hash: int | None = None
    """A hash of the prompt, which is the same in one process; `None` if it is not recorded."""
    end: str | None = None
    """The name of the final status; `None` while unfinished."""
    seconds_waiting: dict[str, float] = {}
    """Seconds in the waiting queue by cause (`RequestState.wait`), with `unknown` for the rest.
    Empty if `RunDecisions` was told not to read them."""

    @property
    def ttft(self) -> float | None:
        """Seconds from the arrival to the first token."""
        return latency.ttft(self.metrics)

    @property
    def e2e(self) -> float | None:
        """Seconds from the arrival to the end."""
        return latency.e2e_latency(self.metrics)


class RunDecisions(Reader):
    """The decisions of a recorded run.

    Args:
        timeline: The recording, which is read from its beginning to its end.
        progress: Shows the part that has been read.
        readers: Further readers of the same pass.
        reads_waits: Whether `RunRequest.seconds_waiting` is read, for which states are restored.

    Raises:
        RecordingError: A part of the recording cannot be read.
    """

    needs_state = False  # to apply all events takes longer than a few seeks

    def __init__(
        self,
        timeline: Timeline,
        progress: ShowProgress = no_progress,
        readers: Sequence[Reader] = (),
        *,
        reads_waits: bool = True,
    ) -> None:
        self.info: EngineInfo | None = None
        self.requests: list[RunRequest] = []
        """The requests in order of arrival; their index is their number."""
        self.steps: list[StepDecisions] = []
        self.num_gaps = 0
        """Gaps, after which requests may be missing."""
        self.num_output_tokens = 0
        """Tokens that the recording has."""
        self.num_preemptions = self.num_lost_tokens = self.num_cached_tokens = 0
        """Preemptions in the recording, the tokens lost to them, and the tokens that the first
        admissions of its requests found in the prefix cache."""
        self.num_admitted_tokens = 0
        """The tokens of the prompts that were looked up at these admissions."""
        self._numbers: dict[str, int] = {}
        self._request_of: dict[int, int] = {}
        self._waiting: set[int] = set()
        self._arrived: list[int] = []
        self._ended: list[tuple[int, str]] = []
        self._last_decodes: tuple[int, ...] = ()
        self._start_time = 0.0
        self.end_time = 0.0
        """The end of the last step, epoch seconds."""
        self._timeline = timeline
        self._reads_waits = reads_waits
        self._num_ended = 0
        self._most_ended = 1
        """The requests that end between two readings of waits: a state drops the oldest of them."""
        Replay(timeline, [self, *readers]).run(progress)
        self._read_waits(timeline.last)

    @property
    def duration(self) -> float:
        """Seconds from the start of the first step to the end of the last."""
        return max(self.end_time - self._start_time, 0.0)

    @property
    def num_served(self) -> int:
        """The number of requests that ended with a complete output."""
        return sum(request.end in SERVED for request in self.requests)

    def number(self, request_id: str) -> int | None:
        """Returns the number of a request; `None` if the run has none of this id."""
        return self._numbers.get(request_id)

    def start(self, position: int, state: EngineState) -> None:
        """Adds the requests of a state that was not reached by events."""
        if position > self._timeline.first:
            self.num_gaps += bool(self.steps)
            self._read_waits(position - 1)
        # A state drops an eighth of its finished requests at once.
        self._most_ended = max(state.max_finished // 2, 1)
        self._read_state(state)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads an event."""
        self._read(position, event)
        if isinstance(event, RequestFinished):
            self._num_ended += 1
            if self._num_ended % self._most_ended == 0:
                self._read_waits(position)

    def _read_waits(self, position: int) -> None:
        """Reads the waits of the requests in the state at a position, up to its time."""
        if not self._reads_waits:
            return
        state = self._timeline.at(position)
        for request in state.requests.values():
            if (number := self._numbers.get(request.request_id)) is None:
                continue
            wait = wait_until(state, request, state.time)
            seconds = {cause: known for cause, known in wait.by_cause.items() if known > 0}
            if (unknown := wait.total - sum(seconds.values())) > _SHORTEST_WAIT:
                seconds["unknown"] = unknown
            self.requests[number].seconds_waiting = seconds

    def _read_state(self, state: EngineState) -> None:
        self.info = state.info or self.info
        for request in state.requests.values():
            if request.request_id not in self._numbers:
                number = self._add(_of_state(request, state), request.seq_ids)
                if state.step < 0:  # it arrived before the viewer, and before the first step
                    self._arrived.append(number)
                runs = any(
                    state.sequences[seq_id].status is SequenceStatus.RUNNING
                    for seq_id in request.seq_ids
                )
                if runs or request.finish_reason is not None:
                    self._waiting.discard(number)

    def _read(self, position: int, event: Event) -> None:
        match event:
            case Step():
                self._step(position, event)
            case RequestArrived():
                if event.request_id not in self._numbers:
                    metrics = event.metrics or RequestMetrics(
                        event.arrival_time, event.arrival_time, None, None, None
                    )
                    request = RunRequest(
                        event.request_id,
                        event.num_prompt_tokens,
                        event.priority,
                        metrics,
                        prompt_hash=_hash(event.prompt_token_ids, event.prompt),
                    )
                    self._arrived.append(self._add(request, event.seq_ids))
            case RequestFinished():
                number = self._numbers.get(event.request_id)
                if number is not None:
                    request = self.requests[number]
                    request.metrics, request.end = event.metrics, event.status.name
                    if request.metrics.finished_time is None:
                        request.metrics.finished_time = event.time
                    self._ended.append((number, event.status.name))
                    self._waiting.discard(number)
            case StreamingUpdate():
                if (number := self._numbers.get(event.request_id)) is not None:
                    self._waiting.add(number)
            case EngineInfo():
                self.info = event

    def _add(self, request: RunRequest, seq_ids: list[int]) -> int:
        number = self._numbers[request.request_id] = len(self.requests)
        self.requests.append(request)
        request.num_sequences = len(seq_ids)
        self._waiting.add(number)
        for seq_id in seq_ids:
            self._request_of[seq_id] = number
        return number

    def _step(self, position: int, step: Step) -> None:
        if not self.steps:
            self._start_time = self.end_time = step.start_time
        self.end_time = max(self.end_time, step.time)
        sampled: list[tuple[int, ...]] = []
        for update in step.sequences:
            if update.request_id is not None and update.request_id in self._numbers:
                own = self._numbers[update.request_id]
                if self._request_of.get(update.seq_id) != own:  # a fork
                    self._request_of[update.seq_id] = own
                    self.requests[own].num_sequences += 1
            if token_ids := update.new_token_ids:
                sampled.append(tuple(token_ids))
                self.num_output_tokens += len(token_ids)
                if (number := self._request_of.get(update.seq_id)) is not None:
                    self.requests[number].num_output_tokens += len(token_ids)
        preempted = tuple(self._preemptions(step))
        admitted, chunks, decodes = self._batch(step)
        moves = block_moves(step)
        for request_id, metrics in step.metrics.items():
            if request_id in self._numbers:
                self.requests[self._numbers[request_id]].metrics = metrics
        self.steps.append(
            StepDecisions(
                step.step,
                position,
                tuple(self._arrived),
                tuple(sorted(self._ended)),
                preempted,
                admitted,
                chunks,
                decodes,
                (len(moves.swapped_in), len(moves.swapped_out), len(moves.copied)),
                (num_lookahead_slots(step), num_iterations(step)),
                hash(tuple(sampled)),
                tuple(
                    (self._numbers[reason.request_id], reason.cause, reason.num_missing)
                    for reason in step.wait_reasons
                    if reason.request_id in self._numbers
                ),
                step.stats,
            )
        )
        self._arrived, self._ended = [], []

    def _preemptions(self, step: Step) -> Iterator[tuple[int, int | None, str]]:
        for preemption in step.preemptions:
            number = self._numbers.get(preemption.request_id)
            if number is None:
                continue
            request = self.requests[number]
            request.num_preemptions += 1
            request.num_lost_tokens += preemption.num_lost_tokens
            self.num_preemptions += 1
            self.num_lost_tokens += preemption.num_lost_tokens
            self._waiting.add(number)
            yield number, self._numbers.get(preemption.for_request_id or ""), preemption.mode

    def _batch(
        self, step: Step
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], tuple[int, ...]]:
        """Returns who was admitted, the chunks of several tokens or of a prompt, and the rest."""
        admitted: list[tuple[int, int]] = []
        chunks: list[tuple[int, int]] = []
        decodes: list[int] = []
        seen: set[int] = set()
        for member in members(step):
            number = self._numbers.get(member.request_id)
            if number is None or number in seen:
                continue
            seen.add(number)
            if number in self._waiting:
                self._waiting.discard(number)
                num_cached = member.num_cached_tokens or 0
                admitted.append((number, num_cached))
                request = self.requests[number]
                if request.num_cached_tokens is None:
                    request.num_cached_tokens = num_cached
                    self.num_cached_tokens += num_cached
                    self.num_admitted_tokens += request.num_prompt_tokens
            if member.is_prompt or member.num_tokens != 1:
                chunks.append((number, member.num_tokens))
            else:
                decodes.append(number)
        if decodes != [*self._last_decodes]:  # most steps decode what the step before did
            self._last_decodes = tuple(decodes)
        return tuple(admitted), tuple(chunks), self._last_decodes


def _of_state(request: RequestState, state: EngineState) -> RunRequest:
    sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
    is_ended = request.finish_reason is not None
    return RunRequest(
        request.request_id,
        request.num_prompt_tokens,
        request.priority,
        request.metrics,
        num_output_tokens=sum(len(sequence.output_token_ids) for sequence in sequences),
        num_preemptions=request.num_preemptions,
        num_lost_tokens=request.num_lost_tokens,
        prompt_hash=_hash(request.prompt_token_ids, request.prompt),
        end=sequences[0].status.name if is_ended and sequences else request.finish_reason,
    )


def _hash(token_ids: Sequence[int], prompt: str | None) -> int | None:
    """Returns a hash of a prompt; `None` if neither its tokens nor its text are known."""
    if token_ids:
        return hash(array("q", token_ids).tobytes())
    return hash(prompt) if prompt else None
