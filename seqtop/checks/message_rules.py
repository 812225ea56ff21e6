"""Rules on the figures in messages: finite times, valid ids, increasing step numbers."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState
from seqtop.text.format import plural
from seqtop.wire.messages import (
    EngineInfo,
    EngineStopped,
    Event,
    Heartbeat,
    NotPublished,
    RequestArrived,
    RequestFinished,
    Step,
    StreamingUpdate,
)

_MAX_SEQ_ID = 2**63 - 1
_MAX_TOKEN_ID = 2**31 - 1
"""Tokenizers and kernels use 32-bit token ids."""

UNREADABLE = "unreadable"
"""The rule on messages that cannot be decoded, which `StreamChecker.report` reports."""
rule(UNREADABLE, "a message cannot be read")

FRAMES, SNAPSHOT, WELCOME, IGNORED, SILENCE = "frames snapshot welcome ignored silence".split()
"""The rules on the protocol, which `seqtop.checks.protocol` reports."""
rule(FRAMES, "the frames, the number or the order of a message are not those of the protocol")
rule(SNAPSHOT, "a snapshot does not come, or is not the state after the messages before it")
rule(WELCOME, "a new subscription gets no welcome message", "warning")
rule(IGNORED, "a message has a name, an element or a key that nothing reads", "warning")
rule(SILENCE, "nothing was sent for much longer than heartbeat_interval", "warning")
NOT_PUBLISHED = "not-published"
_IS_NOT_PUBLISHED = rule(
    NOT_PUBLISHED, "the engine's publisher could not make a message, and says why"
)
PROTOCOL_RULES = frozenset({FRAMES, SNAPSHOT, WELCOME, IGNORED, SILENCE})


class MessageRules(RuleGroup):
    """Rules on single messages, and on their numbers."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._step_before = state.step

    def before(self, event: Event) -> Iterator[Finding]:
        """Records the number of the last step."""
        self._step_before = self.state.step
        yield from ()

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the figures of an event."""
        match event:
            case Step():
                yield from self._step_number(event)
                yield from self._step_ids(event)
                yield from self._finite(_step_times(event))
            case RequestArrived():
                request_id = event.request_id
                yield from self._ids("sequence id", event.seq_ids, request_id=request_id)
                yield from self._ids("token id", event.prompt_token_ids, request_id=request_id)
                yield from self._finite([("arrival_time", event.arrival_time)], request_id)
            case StreamingUpdate():
                yield from self._ids(
                    "token id", event.prompt_token_ids, request_id=event.request_id
                )
                yield from self._finite([("time", event.time)], event.request_id)
            case RequestFinished():
                times = [("time", event.time), *_metric_times(event.metrics)]
                yield from self._finite(times, event.request_id)
            case EngineInfo():
                yield from self._finite([("start_time", event.start_time)])
            case NotPublished():
                yield from self._finite([("time", event.time)])
                yield from self._not_published(event)
            case Heartbeat() | EngineStopped():
                yield from self._finite([("time", event.time)])

    @_IS_NOT_PUBLISHED
    def _not_published(self, event: NotPublished) -> Iterator[Finding]:
        yield self.of_engine(not_made(event.reason, event))

    @rule("step-number", "a step does not have a higher number than the step before")
    def _step_number(self, step: Step) -> Iterator[Finding]:
        if step.step < 0 or step.step <= self._step_before:
            before = f" follows step {self._step_before}" if self._step_before >= 0 else ""
            yield self.of_engine(f"step {step.step}{before or ' is negative'}")

    @rule("not-finite", "a time or a duration is not a finite number")
    def _finite(
        self, times: Iterable[tuple[str, float | None]], request_id: str | None = None
    ) -> Iterator[Finding]:
        for name, time in times:
            if time is not None and not math.isfinite(time):
                yield self.of_engine(f"{name} is {time}", request_id=request_id)

    def _step_ids(self, step: Step) -> Iterator[Finding]:
        for update in step.sequences:
            # Making a generator costs more than testing its condition.
            if not 0 <= update.seq_id <= _MAX_SEQ_ID:
                yield from self._ids("sequence id", (update.seq_id,))
            if not all(0 <= token <= _MAX_TOKEN_ID for token in update.new_token_ids):
                yield from self._ids("token id", update.new_token_ids)

    @rule("id-range", "a sequence id or a token id is out of range")
    def _ids(
        self, name: str, ids: Collection[int], *, request_id: str | None = None
    ) -> Iterator[Finding]:
        if not ids:
            return
        largest = _MAX_TOKEN_ID if name == "token id" else _MAX_SEQ_ID
        for id_ in {min(ids), max(ids)}:
            if not 0 <= id_ <= largest:
                yield self.of_engine(
                    f"{name} {id_} is not between 0 and {largest}", request_id=request_id
                )


def not_made(reason: str, event: NotPublished) -> str:
    """Returns the sentence of a finding on a message that could not be made."""
    return f"{reason} ({plural(event.num_messages, 'message')} so far)"


def _step_times(step: Step) -> Iterator[tuple[str, float | None]]:
    yield "start_time", step.start_time
    yield "time", step.time
    yield "stats.scheduler_time", step.stats.scheduler_time
    yield "stats.model_forward_time", step.stats.model_forward_time
    yield "stats.model_execute_time", step.stats.model_execute_time
    for metrics in step.metrics.values():
        yield from _metric_times(metrics)


def _metric_times(metrics: RequestMetrics) -> Iterator[tuple[str, float | None]]:
    yield "arrival_time", metrics.arrival_time
    yield "last_token_time", metrics.last_token_time
    yield "first_scheduled_time", metrics.first_scheduled_time
    yield "first_token_time", metrics.first_token_time
    yield "finished_time", metrics.finished_time
