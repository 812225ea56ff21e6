"""Resources that requests share in one step: its batch, sequence slots, blocks and adapters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.wire.batch import members
from seqtop.wire.messages import Step

_UNFINISHED = frozenset({SequenceStatus.WAITING, SequenceStatus.RUNNING, SequenceStatus.SWAPPED})


class Tokens(msgspec.Struct):
    """Tokens that a request computed in one or several steps.

    They are fractions if only a part of a step counts.
    """

    prefill: float = 0.0
    decode: float = 0.0

    @property
    def total(self) -> float:
        """The tokens of both kinds."""
        return self.prefill + self.decode

    def add(self, other: Tokens, share: float = 1.0) -> None:
        """Adds a share of other tokens."""
        self.prefill += share * other.prefill
        self.decode += share * other.decode


class Holding(msgspec.Struct):
    """The amount of a resource that each request holds."""

    amounts: dict[str, float] = {}
    """By request id: blocks, sequence slots or tokens."""
    num_unnamed: float = 0.0
    """The part that is in use, but that no request is known to hold."""

    def without(self, request_id: str) -> Holding:
        """Returns what the other requests hold."""
        others = {name: amount for name, amount in self.amounts.items() if name != request_id}
        return Holding(others, self.num_unnamed)


class Contention:
    """A step as seen by those that had to share it.

    Args:
        before: The state before the step, of which only what is needed is read now.
        step: The step.
        previous_end: The end of the step before, epoch seconds.
        holders: The requests that may hold blocks or slots; `None` for all. Those in the queue are
            left out where there are too many to look at each in each step.
    """

    def __init__(
        self,
        before: EngineState,
        step: Step,
        previous_end: float,
        holders: Collection[str] | None = None,
    ) -> None:
        self._holders = holders
        self.seconds = step.time - max(step.start_time, previous_end)
        """The duration, without the time in which the step before had not ended."""
        self.tokens: dict[str, Tokens] = {}
        """The tokens that each request in the batch computed."""
        self.num_sequences: dict[str, float] = {}
        """The sequences of each request in the batch."""
        for member in members(step):
            tokens = self.tokens.setdefault(member.request_id, Tokens())
            if member.is_prompt:
                tokens.prefill += member.num_tokens
            else:
                tokens.decode += member.num_tokens
            number = self.num_sequences.get(member.request_id, 0.0)
            self.num_sequences[member.request_id] = number + 1
        self._stats = step.stats
        self._has_waits = bool(step.wait_reasons)
        self._blocks = _num_blocks(before, holders) if self._has_waits else {}
        self._after: EngineState | None = None

    def end(self, after: EngineState) -> None:
        """Takes note of the state after the step, which has to be the one until it is dropped."""
        self._after = after
        if self._has_waits:
            for request_id, number in _num_blocks(after, self._holders).items():
                self._blocks[request_id] = max(self._blocks.get(request_id, 0), number)

    def holding(self, cause: str, request: RequestState | None) -> Holding:
        """Returns who holds the resource of a cause of waiting (`WaitCause`).

        Args:
            cause: The cause; nobody holds the resource of one that is not a matter of holding.
            request: The request that waits.
        """
        match cause:
            case "no_blocks":
                return Holding(dict(self._blocks), self._num_unnamed_blocks)
            case "seq_limit":
                return Holding(self._slots_held)
            case "token_budget":
                return Holding({name: tokens.total for name, tokens in self.tokens.items()})
            case "lora_slots":
                return Holding(self._adapters(request))
            case _:
                return Holding()

    def fits(self, request: RequestState) -> bool:
        """Returns whether a waiting request could have run beside those that ran.

        The figures after the step have room for its sequences and for all blocks of its prompt and
        output so far, and the token budget has room for a token, or without chunks for all. An
        engine that does not tell its budget is not known to have room.
        """
        state, stats = self._after, self._stats
        if state is None or state.info is None or request.lora:
            return False
        info = state.info
        sequences = [
            state.sequences[seq_id] for seq_id in request.seq_ids if seq_id in state.sequences
        ]
        num_tokens = max((sequence.num_tokens for sequence in sequences), default=0)
        num_blocks = -(-(num_tokens + 1) // max(info.block_size, 1)) * len(sequences)
        used = stats.num_prefill_tokens + stats.num_decode_tokens
        budget = info.max_num_batched_tokens
        return (
            num_blocks <= stats.num_free_blocks + (stats.num_cached_blocks or 0)
            and stats.num_running + len(sequences) <= info.max_num_seqs
            and budget is not None
            and used + (1 if info.enable_chunked_prefill else num_tokens) <= budget
        )

    @cached_property
    def _slots_held(self) -> dict[str, float]:
        """The sequences that run, in the batch or not."""
        slots = dict(self.num_sequences)
        if self._after is not None:
            running: dict[str, float] = {}
            for sequence in _sequences(self._after, self._holders):
                if sequence.status is SequenceStatus.RUNNING:
                    running[sequence.request_id] = running.get(sequence.request_id, 0.0) + 1
            for request_id, number in running.items():
                slots.setdefault(request_id, number)
        return slots

    @cached_property
    def _num_unnamed_blocks(self) -> float:
        """The blocks in use after the step that no block table names."""
        state = self._after
        if state is None or state.info is None:
            return 0.0
        named: set[int] = set()
        for sequence in state.sequences.values():
            named.update(sequence.block_table)
            for table in sequence.group_block_tables:
                named.update(table)
        first = state.info.num_reserved_blocks
        num_named = len(named) - sum(block in named for block in range(min(first, 16)))
        return float(max(self._stats.num_used_blocks - num_named, 0))

    def _adapters(self, request: RequestState | None) -> dict[str, float]:
        """The requests that run with another adapter than that of `request`, equally."""
        state, own = self._after, "" if request is None else request.lora
        if state is None:
            return {}
        loras = {
            request_id: state.requests[request_id].lora
            for request_id in self._slots_held
            if request_id in state.requests
        }
        return {request_id: 1.0 for request_id, lora in loras.items() if lora and lora != own}


def _sequences(state: EngineState, holders: Collection[str] | None) -> Iterable[SequenceState]:
    """Returns the sequences of the requests that may hold something."""
    if holders is None:
        return state.sequences.values()
    requests = [state.requests[name] for name in holders if name in state.requests]
    return [
        state.sequences[seq_id]
        for request in requests
        for seq_id in request.seq_ids
        if seq_id in state.sequences
    ]


def _num_blocks(state: EngineState, holders: Collection[str] | None) -> dict[str, float]:
    """Returns the entries in the block tables of each unfinished request."""
    blocks: dict[str, float] = {}
    for sequence in _sequences(state, holders):
        number = len(sequence.block_table) + sum(map(len, sequence.group_block_tables))
        if number and sequence.status in _UNFINISHED:
            blocks[sequence.request_id] = blocks.get(sequence.request_id, 0.0) + number
    return blocks


def shares(amounts: Mapping[str, float], more: float = 0.0) -> tuple[dict[str, float], float]:
    """Returns the share of each amount in the sum of all and `more`, and that of `more`."""
    total = sum(amounts.values()) + more
    if total <= 0:
        return {}, 0.0
    return {name: amount / total for name, amount in amounts.items()}, more / total
