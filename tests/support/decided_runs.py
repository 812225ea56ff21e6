"""Runs whose decisions or messages a test writes down: no engine made them."""

from collections.abc import Iterable, Sequence

from seqtop.diff.run import RunDecisions, RunRequest, StepDecisions
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support import events

GAP = None
"""A message that is missing, so that a snapshot follows."""
NO_DECISION = StepDecisions(
    step=0,
    position=0,
    arrived=(),
    ended=(),
    preempted=(),
    admitted=(),
    chunks=(),
    decodes=(),
    moves=(0, 0, 0),
    lookahead=(0, 1),
    tokens=0,
    waits=(),
    stats=events.stats(),
)
"""The step of an idle engine."""


def a_request(request_id: str, num_prompt_tokens: int = 3, priority: int = 0) -> RunRequest:
    metrics = RequestMetrics(0.0, 0.0, None, None, None)
    return RunRequest(request_id, num_prompt_tokens, priority, metrics)


def a_run(steps: Sequence[StepDecisions], requests: Sequence[RunRequest] = ()) -> RunDecisions:
    """Returns a run of these steps, which are numbered from 0, and of these requests."""
    history = MemoryStore()
    history.restore("one", -1, EngineState())
    run = RunDecisions(history)
    run.steps = [step._replace(step=number) for number, step in enumerate(steps)]
    run.requests = [*requests]
    run._numbers = {request.request_id: number for number, request in enumerate(requests)}
    return run


def recorded(
    events: Iterable[Event | None], first: int = 0, max_finished: int = 100
) -> MemoryStore:
    """Returns the recording of events, which begins with the state after some of them."""
    history, state = MemoryStore(), EngineState(max_finished=max_finished)
    for number, event in enumerate(events):
        if number == first:
            history.restore("one", number - 1, state)
        if event is GAP:
            history.restore("one", number, state)
            continue
        payload = codec.encode(event)
        read = parsing.event(payload)
        state.apply(read)
        if number >= first:
            history.append(number, payload, read, state)
    return history
