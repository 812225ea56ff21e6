"""A recorded workload: what the engine was given, and what its model answered.

Decisions of the scheduler are not part of it. What a request's model answered is stored by the
output so far, and not by step, because with other settings the steps are others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from seqtop.history.replay import Reader, Replay
from seqtop.history.timed_steps import TimedStep, TimedSteps, timed_step
from seqtop.history.timeline import Timeline
from seqtop.sequence import Logprob, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.snapshot import request_snapshots
from seqtop.text import format as fmt
from seqtop.whatif.figures import FigureCounter, RunFigures
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StreamingUpdate,
)

TokenIds: TypeAlias = tuple[int, ...]


class WorkloadError(Exception):
    """A recording cannot be replayed; the message is one sentence for the user."""


class RecordedDraft(NamedTuple):
    """A draft that was verified after some output."""

    num_tokens: int
    num_accepted: int


class Continuation(NamedTuple):
    """A token by which a beam was continued."""

    parent: TokenIds
    """The output of the beam before."""
    token_id: int
    logprob: float


class Answer(msgspec.Struct):
    """The model's answer to one request."""

    token_ids: list[int] = []
    """The output of a request with one sequence."""
    logprobs: list[float] = []
    candidates: dict[int, dict[int, Logprob]] = {}
    """The candidates for the token at an index, if the request asked for them."""
    drafts: dict[int, RecordedDraft] = {}
    """Drafts by the length of the output before."""
    beams: dict[int, list[Continuation]] = {}
    """The continuations of a beam search by the length of the outputs before, in any order."""
    is_whole: bool = False
    """True if the request ended by itself, so that there are no further tokens."""


class WorkloadRequest(msgspec.Struct):
    """A request of a workload."""

    arrival: RequestArrived
    answer: Answer
    status: SequenceStatus | None = None
    """The final status; `None` if it was unfinished at the end of the recording."""
    joined_at: float = 0.0
    """The time (epoch seconds) from which on a step could schedule it: later than its arrival if it
    joined the queue late, as by the time that its tokens took."""
    ended_at: float | None = None
    """The time (epoch seconds) of its end."""
    num_schedule_calls: int | None = None
    """Calls of the scheduler before its end, if the engine counts them."""
    num_processed: int = 0
    """The steps whose outputs had been processed when it arrived."""
    num_processed_at_abort: int = 0
    """Those that had been processed when it was aborted."""
    follows: str | None = None
    """The request after whose end it arrives, as in a conversation; `None` if it arrives at its
    time."""
    delay: float = 0.0
    """The seconds from the end of that one until it arrives."""
    make_prompt: Callable[[], list[int]] | None = None
    """Makes the prompt of a request of a trace, of which all at once would take much memory."""

    def prompt_token_ids(self) -> list[int]:
        """Returns a new list of the tokens of the prompt."""
        if self.make_prompt is not None:
            return self.make_prompt()
        return list(self.arrival.prompt_token_ids)

    @property
    def lag(self) -> float:
        """The seconds from its arrival until it joined the queue."""
        return self.joined_at - self.arrival.arrival_time

    @property
    def patience(self) -> float | None:
        """The seconds from its arrival until it was aborted; `None` if it was not."""
        if self.status is not SequenceStatus.FINISHED_ABORTED or self.ended_at is None:
            return None
        params = self.arrival.sampling_params
        if self.num_schedule_calls is not None and params is not None and params.stop:
            return None  # vLLM's front end aborts a request at a stop string: with its last token
        return max(self.ended_at - self.arrival.arrival_time, 0.0)

    @property
    def is_cut(self) -> bool:
        """True if its own end is unknown: it was aborted, or unfinished at the end."""
        return self.status in (None, SequenceStatus.FINISHED_ABORTED)

    @property
    def has_free_length(self) -> bool:
        """True if a run with other settings might sample another length: unseeded, and stopped."""
        params = self.arrival.sampling_params
        if params is None or self.status is not SequenceStatus.FINISHED_STOPPED:
            return False
        is_beam = "beam_width" in (params.extra_args or ())
        return not is_beam and params.temperature > 0 and params.seed is None


def read_steps(timeline: Timeline, like: EngineInfo) -> list[TimedStep]:
    """Reads the times of the steps of another recording, which may start in the middle.

    Args:
        timeline: The recording.
        like: The engine whose times are wanted.

    Raises:
        RecordingError: A part of the recording cannot be read.
        WorkloadError: It is of another model or device.
    """
    reader = TimedSteps()
    Replay(timeline, [reader]).run()
    reader.end()
    for name in ("engine", "model", "dtype", "device"):
        given, wanted = getattr(reader.info, name, None), getattr(like, name)
        if given != wanted:
            raise WorkloadError(f"its times are those of another {name}, {given}, not {wanted}")
    return reader.steps


def predecessors(requests: Mapping[str, WorkloadRequest]) -> dict[str, str]:
    """Returns for each request of a closed loop the one whose end it waits for.

    That is the last one that had ended before it arrived, and that no other waits for. The first
    requests, as many as ran at once, wait for none.
    """
    ends = sorted(
        (request.ended_at, request_id)
        for request_id, request in requests.items()
        if request.ended_at is not None
    )
    waits: dict[str, str] = {}
    free: list[str] = []
    following = 0
    for request_id, request in sorted(
        requests.items(), key=lambda item: item[1].arrival.arrival_time
    ):
        while following < len(ends) and ends[following][0] <= request.arrival.arrival_time:
            free.append(ends[following][1])
            following += 1
        if free:
            waits[request_id] = free.pop()
    return waits


class Workload(msgspec.Struct):
    """The workload of a run, recorded or from a trace."""

    info: EngineInfo
    requests: dict[str, WorkloadRequest]
    """All requests by id, in order of arrival."""
    steps: list[TimedStep] = []
    """The recorded steps; none of a trace."""
    figures: RunFigures = msgspec.field(default_factory=RunFigures)
    """The figures of the recorded run."""

    @property
    def unfinished(self) -> list[str]:
        """The requests that had not ended when the recording ends."""
        return [name for name, request in self.requests.items() if request.status is None]

    @property
    def num_free_lengths(self) -> int:
        """The number of requests that might sample another length."""
        return sum(request.has_free_length for request in self.requests.values())


def read_workload(timeline: Timeline) -> Workload:
    """Returns the workload of a recorded run.

    Args:
        timeline: The recording, which is read from its beginning to its end.

    Raises:
        RecordingError: A part of the recording cannot be read.
        WorkloadError: The recording does not contain a whole run from its start, with its tokens.
    """
    reader = _WorkloadReader()
    Replay(timeline, [reader]).run()
    return reader.end()


class _WorkloadReader(Reader):
    """Reads the workload of a recorded run."""

    needs_state = False

    def __init__(self) -> None:
        self.requests: dict[str, WorkloadRequest] = {}
        self.steps: list[TimedStep] = []
        self._counter = FigureCounter()
        self._info: EngineInfo | None = None
        self._has_started = False
        self._arrived: list[str] = []
        self._aborted: list[str] = []
        self._first_step: int
        """The number of the first step, once there is one."""
        self._outputs: dict[int, TokenIds] = {}
        """The output so far of each beam, by sequence id."""
        self._request_of: dict[int, WorkloadRequest] = {}
        """The request of each unfinished sequence."""

    def end(self) -> Workload:
        """Returns the workload."""
        info = self._info
        if info is None:
            raise WorkloadError("the recording does not describe its engine")
        if not self.steps:
            raise WorkloadError("the recording has no step")
        calls = [
            step.num_schedule_calls - self._first_step
            for step in self.steps
            if step.num_schedule_calls is not None
        ]
        if len(calls) == len(self.steps):
            _assign_by_call(self.steps, calls, self.requests, self._first_step, self._aborted)
            self._aborted = []
        for step in self.steps:
            joined = (self.requests[request_id].joined_at for request_id in step.arrived)
            step.first_joined_at = min(joined, default=None)
        self.steps[-1].is_last = True
        if self._aborted:  # by the end of the recording no step had taken note of them
            last = self.steps[-1]
            end = last.end_time
            self.steps.append(TimedStep(self._arrived, self._aborted, end, end, 0, 0, is_last=True))
        return Workload(info, self.requests, self.steps, self._counter.figures())

    def start(self, position: int, state: EngineState) -> None:
        """Starts from a state in which nothing runs."""
        if self._has_started:
            raise WorkloadError(
                f"messages are missing in the recording after {len(self.steps):,} steps"
            )
        self._has_started = True
        self._info = state.info
        if state.info is not None:
            _check(state.info)
        if state.stats is not None:
            self._counter = FigureCounter(num_hits_before=state.stats.prefix_cache_hits)
        if state.step < 0:  # a viewer joined before the first step: nothing has been scheduled
            for snapshot in request_snapshots(state):
                self._arrive(snapshot.arrival)
            return
        unfinished = [
            request for request in state.requests.values() if request.finish_reason is None
        ]
        if unfinished:
            raise WorkloadError(
                "the recording starts in the middle of a run:"
                f" {fmt.plural(len(unfinished), 'request')} had not ended"
            )

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads the next event."""
        self._counter.count(event)
        match event:
            case EngineInfo():
                _check(event)
                is_other = self._info is None or event.incarnation != self._info.incarnation
                if is_other and (self.steps or self.requests):
                    raise WorkloadError(
                        f"the engine was started again after {len(self.steps):,} steps; only one"
                        " run can be replayed"
                    )
                self._info = event
            case RequestArrived():
                self._arrive(event)
            case Step():
                self._step(event)
            case RequestFinished():
                self._finish(event)
            case StreamingUpdate():
                raise WorkloadError(
                    f"request {event.request_id} is a streaming session, which cannot be replayed"
                )

    def _arrive(self, event: RequestArrived) -> None:
        if event.request_id in self.requests:
            raise WorkloadError(f"the id {event.request_id!r} is used by several requests")
        if event.lora:
            raise WorkloadError(
                f"request {event.request_id} uses a LoRA adapter, which cannot be replayed"
            )
        request = WorkloadRequest(event, Answer())
        # What arrived during a step was not scheduled by it.
        earliest = self.steps[-1].start_time if self.steps else event.arrival_time
        request.joined_at = max(event.arrival_time, earliest)
        self.requests[event.request_id] = request
        self._arrived.append(event.request_id)
        for seq_id in event.seq_ids:
            self._request_of[seq_id] = request
            self._outputs[seq_id] = ()

    def _step(self, step: Step) -> None:
        if not self.steps:
            self._first_step = step.step
        self.steps.append(timed_step(step, self._arrived, self._aborted, self.steps))
        self._arrived, self._aborted = [], []
        # Forks come before their parents, and begin with the output that these had before the step.
        before = {update.seq_id: self._outputs.get(update.seq_id, ()) for update in step.sequences}
        for update in step.sequences:
            self._update(update, before)

    def _update(self, update: SequenceUpdate, before: dict[int, TokenIds]) -> None:
        if update.parent_seq_id is not None:
            request = self.requests.get(update.request_id or "")
            if request is None:
                raise WorkloadError(f"sequence {update.seq_id} was forked in an unknown request")
            self._request_of[update.seq_id] = request
            output = before.get(update.parent_seq_id, ())
        else:
            known = self._request_of.get(update.seq_id)
            if known is None:
                raise WorkloadError(f"sequence {update.seq_id} belongs to no request")
            request, output = known, before[update.seq_id]
        answer = request.answer
        params = request.arrival.sampling_params
        if params is not None and "beam_width" in (params.extra_args or ()):
            self._outputs[update.seq_id] = output + tuple(update.new_token_ids)
            for token_id, logprob in zip(update.new_token_ids, update.new_logprobs, strict=False):
                continuations = answer.beams.setdefault(len(output), [])
                continuations.append(Continuation(output, token_id, logprob))
            return
        first = len(answer.token_ids)
        if update.num_draft_tokens is not None:
            answer.drafts[first] = RecordedDraft(
                update.num_draft_tokens, update.num_accepted_tokens or 0
            )
        answer.token_ids += update.new_token_ids
        answer.logprobs += update.new_logprobs
        if update.top_logprobs:
            answer.candidates |= dict(enumerate(update.top_logprobs, first))

    def _finish(self, event: RequestFinished) -> None:
        request = self.requests.get(event.request_id)
        if request is None:
            raise WorkloadError(f"request {event.request_id} ended, but did not arrive")
        request.status, request.ended_at = event.status, event.time
        request.num_schedule_calls = event.num_schedule_calls
        request.answer.is_whole = not request.is_cut
        if event.status is SequenceStatus.FINISHED_ABORTED:
            self._aborted.append(event.request_id)


def _assign_by_call(
    steps: list[TimedStep],
    calls: list[int],
    requests: dict[str, WorkloadRequest],
    first: int,
    aborted_after: list[str],
) -> None:
    """Assigns arrivals, aborts and controls to the steps before whose scheduling they were.

    They were assigned to the steps before whose outputs they were. The n-th step has the outputs of
    the n-th call of the scheduler. What no recorded call has seen is left out.

    Args:
        steps: The steps.
        calls: The calls of the scheduler since the first step before the outputs of each.
        requests: The requests by id.
        first: The number of the first step.
        aborted_after: The requests whose abort is reported after the last step.
    """
    given = [(step.arrived, step.aborted, step.controls) for step in steps]
    given.append(([], aborted_after, []))
    for step in steps:
        step.arrived, step.aborted, step.controls = [], [], []
    for index, (arrived, aborted, controls) in enumerate(given):
        for request_id in arrived:
            request = requests[request_id]
            request.num_processed = index
            call = (request.arrival.num_schedule_calls or 0) - first
            if call < len(steps):
                steps[call].arrived.append(request_id)
                if call > 0:  # the call before had not seen it
                    request.joined_at = max(
                        request.arrival.arrival_time, steps[call - 1].start_time
                    )
        for request_id in aborted:
            call = (requests[request_id].num_schedule_calls or 0) - first
            requests[request_id].num_processed_at_abort = index - 1
            if call == calls[index - 1]:  # it was reported with the outputs after that call
                steps[call - 1].aborted_during.append(request_id)
            elif call < len(steps):
                steps[call].aborted.append(request_id)
        for num_steps, control in controls:
            if control.num_schedule_calls - first < len(steps):
                own = steps[control.num_schedule_calls - first]
                own.controls.append((num_steps, control))
    num_processed = 0
    for index, step in enumerate(steps):
        while num_processed < len(calls) and calls[num_processed] <= index:
            num_processed += 1
        step.num_processed = num_processed


def _check(info: EngineInfo) -> None:
    if info.redacted:
        raise WorkloadError("the recording is redacted: without tokens it cannot be replayed")
    if info.predicted_from:
        raise WorkloadError(
            f"the recording is a prediction from {info.predicted_from}; use that one"
        )
