"""The messages between an engine's process and its publisher's process.

Most sequences of a step are *plain decodes*: one token each, and nothing else that the publisher
could not derive (`PlainDecodes`). Of them a report has columns, with one entry per
sequence, which are encoded without running Python code per entry. Everything else is reported as
it is published.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from engine_stub.step_record import BlockStored, CacheEvent, TableChanges
from seqtop.wire import messages
from seqtop.wire.messages import (
    Abort,
    Accepted,
    EngineInfo,
    Refused,
    RequestArrived,
    RequestFinished,
    Submit,
)
from seqtop.wire.snapshot import Snapshot


class ArrivalReport(msgspec.Struct, array_like=True, tag=True):
    """A group that has joined the waiting queue.

    Attributes:
        block_size: Tokens per block.
    """

    arrival: RequestArrived
    block_size: int


class StepReport(msgspec.Struct, array_like=True, tag=True):
    """One step.

    Attributes:
        step: The message without plain decodes, and without what is known from `cache_events`.
        other_groups: The positions in the batch of the groups in `step`.
        other_positions: The positions in `StepRecord.updates` of the sequences in `step`, after
            those of preempted groups.
        seq_ids: The sequences of the columns; None for those of the last report.
        token_ids: The token of each.
        logprobs: Its log probability.
        texts: The new text of each.
        table_changes: Blocks appended to their tables, and whole tables.
        forks: All tokens of each forked sequence, by its id.
        cache_events: Events of the prefix cache, in order.
        ended_before: Groups that ended before the step.
        ended: Groups that ended with it.
    """

    step: messages.Step
    other_groups: list[int]
    other_positions: list[int]
    seq_ids: list[int] | None
    token_ids: list[int]
    logprobs: list[float]
    texts: list[str]
    table_changes: TableChanges
    forks: dict[int, list[int]]
    cache_events: list[CacheEvent]
    ended_before: list[RequestFinished]
    ended: list[RequestFinished]


class StateReport(msgspec.Struct, array_like=True, tag=True):
    """The whole state, for a publisher that lacks earlier reports.

    Attributes:
        snapshot: All unfinished requests; without the prefix cache.
        stored: The blocks in the prefix cache.
    """

    snapshot: Snapshot
    stored: list[BlockStored]


class Start(msgspec.Struct, array_like=True, tag=True):
    """The engine's first message to the publisher's process.

    Attributes:
        info: The description of the engine.
        endpoint: The ZeroMQ endpoint to publish at.
        insecure: Whether other machines may connect without keys.
        keys: The engine's secret key file, the viewers to admit, and those that may control; None
            without keys.
    """

    info: EngineInfo
    endpoint: str
    insecure: bool
    keys: tuple[str, str, str | None] | None


class CommandReply(msgspec.Struct, array_like=True, tag=True):
    """The engine's answer to a command, by the number of the command."""

    number: int
    reply: Accepted | Refused


class Stop(msgspec.Struct, array_like=True, tag=True):
    """The engine's last message."""

    reason: str
    failed: bool


ToPublisher: TypeAlias = Start | ArrivalReport | StepReport | StateReport | CommandReply | Stop


class Started(msgspec.Struct, array_like=True, tag=True):
    """The publisher's answer to `Start`; the error, one sentence, if it cannot publish."""

    error: str | None


class ViewerCommand(msgspec.Struct, array_like=True, tag=True):
    """A viewer's command, numbered by the publisher."""

    number: int
    command: Submit | Abort


ToEngine: TypeAlias = Started | ViewerCommand
