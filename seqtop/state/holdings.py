"""Holders of what others wait for: KV blocks, sequence slots, LoRA adapters, the token budget.

A state has the ids of all requests that hold blocks or slots (`EngineData.holders`), so that a step
costs as much as there are holders, and not as there are requests. Requests that have ended are
among them until the engine has freed their blocks, which a KV connector may still send. It says
how much of its encoder cache is in use, but not by whom.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.wait_causes import SESSION_INPUT
from seqtop.wire.batch import RequestTokens
from seqtop.wire.messages import Step

HELD = frozenset({"no_blocks", "seq_limit", "token_budget", "lora_slots"})
"""The causes of waiting for something that others hold."""
_MAX_RESERVED = 16


class Holding(msgspec.Struct, frozen=True):
    """The holders of one resource, and how much each holds."""

    amounts: Mapping[str, float] = {}
    """By request id: blocks, sequence slots, tokens, or 1 for an adapter."""
    num_unnamed: float = 0.0
    """The part that is in use, but that no request is known to hold."""
    num_withheld: float = 0.0
    """The part that is free, but kept for the head of the queue, which needs more."""


def update_holders(state: EngineData, request: RequestState) -> None:
    """Adds a request to the holders, or removes it, as its sequences are now."""
    for sequence in own_sequences(state, request):
        table = sequence.block_table or any(sequence.group_block_tables)
        if table or _has_slot(sequence):
            state.holders[request.request_id] = True
            return
    state.holders.pop(request.request_id, None)


def own_sequences(state: EngineData, request: RequestState) -> Iterator[SequenceState]:
    """Yields the sequences of a request."""
    for seq_id in request.seq_ids:
        if (sequence := state.sequences.get(seq_id)) is not None:
            yield sequence


def holders(state: EngineData) -> Iterator[RequestState]:
    """Yields the requests that hold blocks or sequence slots, ended ones included."""
    for request_id in state.holders:
        if (request := state.requests.get(request_id)) is not None:
            yield request


def has_ended(state: EngineData, request: RequestState) -> bool:
    """Returns whether a request has ended, though it may still hold blocks."""
    if request.finish_reason is not None:
        return True
    own = [sequence.status for sequence in own_sequences(state, request)]
    return bool(own) and all(map(SequenceStatus.is_finished, own))


def blocks(state: EngineData, request: RequestState) -> set[tuple[int, int]]:
    """Returns the blocks of a request, as KV-cache group and block; a shared one is there once."""
    first = 0 if state.info is None else state.info.num_reserved_blocks
    return {
        (group, block)
        for sequence in own_sequences(state, request)
        for group, table in enumerate((sequence.block_table, *sequence.group_block_tables))
        for block in table
        if block >= first
    }


def num_blocks(state: EngineData, request: RequestState) -> int:
    """Returns the number of `blocks`; for one sequence without a set of them."""
    if len(request.seq_ids) != 1 or (sequence := state.sequences.get(request.seq_ids[0])) is None:
        return len(blocks(state, request))
    tables = (sequence.block_table, *sequence.group_block_tables)
    number = sum(map(len, tables))
    if state.info is not None and state.info.num_reserved_blocks > 0:
        reserved = range(min(state.info.num_reserved_blocks, _MAX_RESERVED))
        number -= sum(table.count(block) for table in tables for block in reserved)
    return number


def num_slots(state: EngineData, request: RequestState) -> int:
    """Returns the sequence slots that a request has: running sequences, and idle sessions."""
    return sum(map(_has_slot, own_sequences(state, request)))


def running(state: EngineData) -> Iterator[RequestState]:
    """Yields the requests that have sequence slots."""
    return (request for request in holders(state) if num_slots(state, request))


def adapters(state: EngineData, *, than: str = "") -> dict[str, list[str]]:
    """Returns the requests that run with each LoRA adapter other than `than`, by its name."""
    users: dict[str, list[str]] = {}
    for request in running(state):
        if request.lora and request.lora != than:
            users.setdefault(request.lora, []).append(request.request_id)
    return users


def amounts(state: EngineData, cause: str, lora: str = "") -> dict[str, int]:
    """Returns what each request holds of what a cause of waiting is about, the largest first.

    Args:
        state: The state.
        cause: The cause. Of one that is not a matter of holding, these are blocks.
        lora: The adapter of the request that waits, for `lora_slots`.
    """
    match cause:
        case "seq_limit":
            held = {own.request_id: num_slots(state, own) for own in running(state)}
        case "lora_slots":
            users = adapters(state, than=lora).values()
            held = {
                name: num_slots(state, state.requests[name]) for names in users for name in names
            }
        case "token_budget":
            held = {own.request_id: own.token_chunk_size for own in running(state)}
        case _:
            held = {own.request_id: num_blocks(state, own) for own in holders(state)}
    ranked = sorted(held.items(), key=lambda item: -item[1])
    return {name: amount for name, amount in ranked if amount > 0}


def num_available_blocks(state: EngineData) -> int | None:
    """Returns the blocks that are free, or in use by the prefix cache only."""
    stats = state.stats
    return None if stats is None else stats.num_free_blocks + (stats.num_cached_blocks or 0)


def num_freed_blocks(state: EngineData) -> dict[str, tuple[int, int]]:
    """Returns the blocks of each request, and those of them that its end frees.

    The end of a request does not free the blocks that another one has in its tables, too.
    """
    own = {request.request_id: blocks(state, request) for request in holders(state)}
    num_owners: dict[tuple[int, int], int] = {}
    for held in own.values():
        for block in held:
            num_owners[block] = num_owners.get(block, 0) + 1
    return {
        name: (len(held), sum(num_owners[block] == 1 for block in held))
        for name, held in own.items()
        if held
    }


def _has_slot(sequence: SequenceState) -> bool:
    if sequence.status is SequenceStatus.RUNNING:
        return True
    is_over = SequenceStatus.is_finished(sequence.status)
    return sequence.engine_status == SESSION_INPUT and not is_over


class Holdings:
    """Holders in one step: what a request has at its beginning, its end, or in its batch.

    Args:
        state: The state before the step, of which only what is needed is read now.
        step: The step.
        tokens: The part of each request in its batch.
    """

    def __init__(self, state: EngineData, step: Step, tokens: Mapping[str, RequestTokens]) -> None:
        self._tokens = tokens
        self._stats = step.stats
        self._state: EngineData | None = None
        self._known: dict[tuple[str, str], Holding] = {}
        self._blocks: dict[str, float] = {}
        self._num_available = num_available_blocks(state)
        self._has_block_waits = any(reason.cause == "no_blocks" for reason in step.wait_reasons)
        if self._has_block_waits:
            # What a preemption took is not held in the step any more.
            self._add_blocks(state, {preemption.request_id for preemption in step.preemptions})

    def end(self, state: EngineData) -> None:
        """Takes note of the state after the step, which has to be the one until it is dropped."""
        self._state = state
        if self._has_block_waits:
            self._add_blocks(state)

    def of(self, cause: str, lora: str = "") -> Holding:
        """Returns who holds the resource of a cause of waiting (`WaitCause`).

        Args:
            cause: The cause; nobody holds the resource of one that is not a matter of holding.
            lora: The adapter of the request that waits.
        """
        key = cause, lora if cause == "lora_slots" else ""
        holding = self._known.get(key)
        if holding is None:
            holding = self._known[key] = self._find(*key)
        return holding

    def _find(self, cause: str, lora: str) -> Holding:
        state, stats = self._state, self._stats
        info = None if state is None else state.info
        match cause:
            case "no_blocks":
                unnamed = max(stats.num_used_blocks - sum(self._blocks.values()), 0)
                # What the step itself freed was not available to it, nor what it allocated.
                available = stats.num_free_blocks + (stats.num_cached_blocks or 0)
                if self._num_available is not None:
                    available = min(available, self._num_available)
                return Holding(self._blocks, unnamed, max(available, 0))
            case "seq_limit":
                slots = self._slots()
                free = 0.0 if info is None else info.max_num_seqs - sum(slots.values())
                return Holding(slots, 0.0, max(free, 0.0))
            case "token_budget":
                tokens = {name: float(own.total) for name, own in self._tokens.items()}
                budget = None if info is None else info.max_num_batched_tokens
                left = 0.0 if budget is None else budget - sum(tokens.values())
                return Holding(tokens, 0.0, max(left, 0.0))
            case "lora_slots" if state is not None:
                return Holding(
                    {
                        name: 1.0
                        for name in self._slots()
                        if (request := state.requests.get(name)) is not None
                        and request.lora
                        and request.lora != lora
                    }
                )
            case _:
                return Holding()

    def _slots(self) -> dict[str, float]:
        """Returns the sequences that run, in the batch or not."""
        slots = {name: float(own.num_sequences) for name, own in self._tokens.items()}
        if (state := self._state) is not None:
            for request in running(state):
                if request.request_id not in slots:
                    slots[request.request_id] = float(num_slots(state, request))
        return slots

    def _add_blocks(self, state: EngineData, preempted: Container[str] = ()) -> None:
        for request in holders(state):
            name = request.request_id
            if name not in preempted and (number := num_blocks(state, request)):
                self._blocks[name] = max(self._blocks.get(name, 0), number)
