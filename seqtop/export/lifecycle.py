"""Everything that is on record, gathered for exports: each request's whole life, each step.

An `EngineState` forgets finished requests beyond a cap and every step but the last; here a
timeline is gone through once, and nothing is forgotten.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import msgspec

from seqtop.history.event_index import EventKind
from seqtop.history.timeline import Timeline
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.wire.decode_rows import num_decodes
from seqtop.wire.messages import EngineInfo, Preemption, Step, StepStats, WaitCause


class RecordedStep(msgspec.Struct):
    """One step. Times are epoch seconds."""

    step: int
    start_time: float
    time: float
    stats: StepStats
    num_scheduled: int
    """Requests in the batch."""
    num_preempted: int


class WaitObservations(msgspec.Struct):
    """What steps have said of one request that its state does not keep."""

    waits: list[tuple[float, WaitCause]] = []
    """The start of each step that left it waiting and said why."""
    preemptions: dict[float, tuple[int, Preemption]] = {}
    """By the start of the step that preempted it: that step's number and what it said."""


class RequestLifecycle(msgspec.Struct):
    """One request from its arrival to its end, or to where the record ends."""

    request: RequestState
    sequences: list[SequenceState]
    until: float
    """The engine's clock when this request was last seen, epoch seconds."""
    told: WaitObservations


class Run(msgspec.Struct):
    """One start of an engine."""

    info: EngineInfo | None
    lives: dict[str, RequestLifecycle] = {}
    """By request id, in order of arrival."""
    steps: list[RecordedStep] = []

    @property
    def incarnation(self) -> str:
        return self.info.incarnation if self.info else ""


def gather(timeline: Timeline) -> list[Run]:
    """All that `timeline` holds now, a run for each start of the engine.

    Raises:
        RecordingError: a stretch of it cannot be read.
    """
    first, last = timeline.first, timeline.last
    state = _unforgetting(timeline, first)
    run = Run(state.info)
    runs = [run]
    told: defaultdict[str, WaitObservations] = defaultdict(WaitObservations)
    for position, event in timeline.events(first, last):
        if event is None:
            _keep(run, state, told)
            state = _unforgetting(timeline, position)
            if timeline.marks[position].kind & EventKind.RESTART:
                run, told = Run(state.info), defaultdict(WaitObservations)
                runs.append(run)
            continue
        state.apply(event)
        if isinstance(event, Step):
            run.steps.append(_record(event))
            _listen(event, told)
    _keep(run, state, told)
    return runs


def _unforgetting(timeline: Timeline, position: int) -> EngineState:
    """The state at `position`, as one that drops no request from now on."""
    state = timeline.at(position)
    state.max_finished = sys.maxsize
    return state


def _listen(step: Step, told: defaultdict[str, WaitObservations]) -> None:
    for reason in step.wait_reasons:
        told[reason.request_id].waits.append((step.start_time, reason.cause))
    for preemption in step.preemptions:
        told[preemption.request_id].preemptions[step.start_time] = (step.step, preemption)


def _keep(run: Run, state: EngineState, told: defaultdict[str, WaitObservations]) -> None:
    """Take over what `state` knows. Of a request seen before, the newer account holds."""
    run.info = state.info or run.info
    for request_id, request in state.requests.items():
        run.lives[request_id] = RequestLifecycle(
            request,
            [state.sequences[seq_id] for seq_id in request.seq_ids],
            until=state.time,
            told=told[request_id],
        )


def _record(step: Step) -> RecordedStep:
    return RecordedStep(
        step=step.step,
        start_time=step.start_time,
        time=step.time,
        stats=step.stats,
        num_scheduled=len(step.execute.seq_group_metadata_list) + num_decodes(step),
        num_preempted=len(step.preemptions),
    )
