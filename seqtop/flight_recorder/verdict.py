"""Causes of a flight record, and the verdict that is written beside it."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

import msgspec

from seqtop.state.model import EngineData, RequestState

ENDED: Final = "ended"
"""The process that publishes has ended without announcing it."""
FAILED: Final = "failed"
"""The engine has announced that it cannot continue."""
SILENT: Final = "silent"
"""Nothing arrives from the engine, not even heartbeats."""
MISSED_SLO: Final = "slo"
"""A request has missed an objective."""

CONDITION: Final = "condition"
"""A condition that a user gave holds."""

MAX_REQUESTS = 100
"""Requests that a verdict names."""
MAX_ALSO = 100
"""Further causes that a verdict names."""


class Trigger(NamedTuple):
    """A reason to write a record."""

    name: str
    """`ended`, `failed`, `silent`, `slo`, `condition` or the name of a rule of the checks."""
    message: str
    """A sentence with the figures that prove it."""
    request_ids: list[str]
    """The requests that are concerned, at most `MAX_REQUESTS`."""

    @property
    def rank(self) -> int:
        """The rank among the causes of one incident, of which the record has the highest."""
        if self.name in (ENDED, FAILED, SILENT):
            return 2
        return 0 if self.name in (MISSED_SLO, CONDITION) else 1


class FurtherCause(msgspec.Struct):
    """A further cause of the same incident."""

    cause: str
    message: str
    request_ids: list[str]
    step: int
    """The last step; -1 before the first."""


class UnfinishedRequest(msgspec.Struct):
    """A request that was unfinished."""

    request_id: str
    status: list[str]
    """The status of each of its sequences."""
    num_prompt_tokens: int
    num_computed_tokens: list[int]
    """The computed tokens of each sequence."""
    num_output_tokens: list[int]
    """The output tokens of each sequence."""
    num_preemptions: int
    waits_for: str | None
    """The reason to wait that the last step gave; `None` if it gave none."""


class Verdict(msgspec.Struct):
    """The event that a record is about: its cause, its time and its requests."""

    cause: str
    """`ended`, `failed`, `silent`, `slo`, `condition` or the name of a rule of the checks."""
    message: str
    request_ids: list[str]
    """The requests that are concerned."""
    time: float
    """The engine's clock at its last message, epoch seconds."""
    step: int
    """The last step; -1 before the first."""
    endpoint: str
    engine_id: str
    model: str
    incarnation: str
    num_unfinished: int
    unfinished: list[UnfinishedRequest]
    """The first unfinished requests, in order of arrival."""
    findings: dict[str, int]
    """Findings of the checks so far, by rule."""
    redacted: bool
    """True if the recording contains no prompts, outputs and token ids."""
    also: list[FurtherCause] = []
    """Further causes, within a minute, in the order in which they were found."""
    recording: str | None = None
    """The name of the recording beside this file; `None` if it is not written."""
    stacks: list[str] = []
    """The stacks of the threads of the engine's process, line by line, the newest call first."""
    stacks_problem: str | None = None
    """The reason why there are none."""
    problem: str | None = None
    """The reason why the recording is missing or not complete."""


def verdict(
    cause: Trigger, state: EngineData, *, endpoint: str, findings: dict[str, int], redacted: bool
) -> Verdict:
    """Returns the verdict on a cause, with the state of the engine at its last message."""
    info = state.info
    unfinished = [request for request in state.requests.values() if request.finish_reason is None]
    return Verdict(
        cause=cause.name,
        message=cause.message,
        request_ids=cause.request_ids,
        time=state.time,
        step=state.step,
        endpoint=endpoint,
        engine_id=info.engine_id if info else "",
        model=info.model if info else "",
        incarnation=info.incarnation if info else "",
        num_unfinished=len(unfinished),
        unfinished=[_describe(state, request) for request in islice(unfinished, MAX_REQUESTS)],
        findings=findings,
        redacted=redacted or (info is not None and info.redacted),
    )


def _describe(state: EngineData, request: RequestState) -> UnfinishedRequest:
    sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
    return UnfinishedRequest(
        request_id=request.request_id,
        status=[sequence.engine_status or sequence.status.name for sequence in sequences],
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=[sequence.num_computed_tokens for sequence in sequences],
        num_output_tokens=[len(sequence.output_token_ids) for sequence in sequences],
        num_preemptions=request.num_preemptions,
        waits_for=request.wait_reason.cause if request.wait_reason is not None else None,
    )
