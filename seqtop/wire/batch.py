"""The batch of a step: who ran, with how many tokens, as prompt or not.

Only this module, the reducer and the publishers know how a step is encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceStatus,
)
from seqtop.wire.messages import SequenceUpdate, Step

_RUNNING = SequenceStatus.RUNNING


class Member(msgspec.Struct, frozen=True, gc=False):
    """A sequence in the batch of a step."""

    request_id: str
    seq_id: int
    is_prompt: bool
    chunk: int
    """Tokens by which the step advanced it before sampling, including those that an admission found
    in the prefix cache, if the engine counts them."""
    num_computed_before: int
    """Computed tokens before the step."""
    update: SequenceUpdate | None
    """The rest of what the step reports about it; `None` if that is nothing."""
    num_cached_tokens: int | None
    """The tokens found in the prefix cache, if the step says how many; `None` otherwise."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed, including those of drafts and of further iterations."""
        num_tokens, update = self.num_chunk_tokens, self.update
        if self.is_prompt or update is None:
            return max(num_tokens, 0)
        return max(num_tokens + (update.num_draft_tokens or 0), len(update.new_token_ids))

    @property
    def num_chunk_tokens(self) -> int:
        """Tokens of the chunk that were not found in the prefix cache."""
        return self.chunk - max((self.num_cached_tokens or 0) - self.num_computed_before, 0)

    @property
    def num_kept_tokens(self) -> int:
        """Tokens by which the computed ones have grown, without rejected drafts."""
        start = max(self.num_computed_before, self.num_cached_tokens or 0)
        return max(self.num_computed_tokens - start, 0)

    @property
    def status(self) -> SequenceStatus:
        """The status after the step."""
        update = self.update
        return _RUNNING if update is None or update.status is None else update.status

    @property
    def num_computed_tokens(self) -> int:
        """Computed tokens after the step."""
        update = self.update
        if update is None or update.num_computed_tokens is None:
            return self.num_computed_before + self.chunk
        return update.num_computed_tokens


def members(step: Step) -> Iterator[Member]:
    """Yields the sequences in the batch of a step, in its order.

    Forks that the step created are not in its batch, and neither are sequences that it preempted.
    """
    updates = {update.seq_id: update for update in step.sequences}
    if step.execute is None:
        for changes in step.sequences:
            chunk = changes.chunk
            if chunk is not None and changes.request_id is not None:
                yield Member(
                    changes.request_id,
                    changes.seq_id,
                    chunk.is_prompt,
                    chunk.num_tokens,
                    chunk.num_computed_tokens,
                    changes,
                    changes.num_cached_tokens,
                )
        return
    for group in step.execute.seq_group_metadata_list:
        yield from _members_of(group, updates)


def _members_of(
    group: SequenceGroupMetadataLike, updates: Mapping[int, SequenceUpdate]
) -> Iterator[Member]:
    is_prompt, chunk_size = group.is_prompt, group.token_chunk_size or 1
    if isinstance(group, SequenceGroupMetadataDelta):
        for seq_id, delta in group.seq_data_delta.items():
            update = updates.get(seq_id)
            yield Member(
                group.request_id,
                seq_id,
                is_prompt,
                chunk_size,
                delta.new_num_computed_tokens,
                update,
                None if update is None else update.num_cached_tokens,
            )
    else:
        for seq_id, data in group.seq_data.items():
            yield Member(
                group.request_id,
                seq_id,
                is_prompt,
                chunk_size,
                data.get_num_computed_tokens(),
                updates.get(seq_id),
                data.get_num_cached_tokens(),
            )


class RequestTokens(msgspec.Struct, frozen=True, gc=False):
    """The part of a batch that belongs to one request."""

    prefill: int
    """Tokens of its prompt that it computed, or of outputs that it computed again."""
    decode: int
    """Other tokens that it computed, including those of drafts and of further iterations."""
    num_sequences: int

    @property
    def total(self) -> int:
        """The tokens of both kinds."""
        return self.prefill + self.decode


def request_tokens(step: Step) -> dict[str, RequestTokens]:
    """Returns the part of each request in the batch of a step, in its order: sums of `members`."""
    tokens: dict[str, RequestTokens] = {}
    updates = {update.seq_id: update for update in step.sequences}
    groups = step.execute.seq_group_metadata_list if step.execute is not None else ()
    for group in groups:
        # Without objects for the decodes, of which a viewer receives 150,000 a second.
        if not group.is_prompt and isinstance(group, SequenceGroupMetadataDelta):
            number, chunk = 0, group.token_chunk_size or 1
            for seq_id, delta in group.seq_data_delta.items():
                if (update := updates.get(seq_id)) is None:
                    number += chunk
                    continue
                drafted = chunk + (update.num_draft_tokens or 0)
                if cached := update.num_cached_tokens:
                    drafted -= max(cached - delta.new_num_computed_tokens, 0)
                number += max(drafted, len(update.new_token_ids))
            if group.request_id not in tokens:
                tokens[group.request_id] = RequestTokens(0, number, len(group.seq_data_delta))
                continue
        _add_members(tokens, _members_of(group, updates))
    if step.execute is None:
        _add_members(tokens, members(step))
    return tokens


def _add_members(tokens: dict[str, RequestTokens], batch: Iterable[Member]) -> None:
    for member in batch:
        own = tokens.get(member.request_id) or RequestTokens(0, 0, 0)
        prefill, decode = own.prefill, own.decode
        if member.is_prompt:
            prefill += member.num_tokens
        else:
            decode += member.num_tokens
        tokens[member.request_id] = RequestTokens(prefill, decode, own.num_sequences + 1)


class SentOutput(NamedTuple):
    """Output tokens of a sequence as the metadata of a step has them."""

    request_id: str
    seq_id: int
    token_ids: Sequence[int]
    is_whole: bool
    """True for all tokens of the output, false for the last ones."""


def sent_outputs(step: Step) -> Iterator[SentOutput]:
    """Yields the output tokens in the metadata of a step, which are those sampled before it."""
    groups = step.execute.seq_group_metadata_list if step.execute is not None else ()
    for group in groups:
        if isinstance(group, SequenceGroupMetadataDelta):
            for seq_id, delta in group.seq_data_delta.items():
                if delta.new_output_token_ids:
                    yield SentOutput(group.request_id, seq_id, delta.new_output_token_ids, False)
        else:
            for seq_id, data in group.seq_data.items():
                yield SentOutput(group.request_id, seq_id, data.output_token_ids_array, True)


def num_lookahead_slots(step: Step) -> int:
    """Returns the tokens that a decode may compute beyond those of its chunk, and drop."""
    return step.execute.num_lookahead_slots if step.execute is not None else 0


def num_iterations(step: Step) -> int:
    """Returns the iterations of the worker in a step, one after the other."""
    return step.execute.num_steps if step.execute is not None else 1


class BlockMoves(NamedTuple):
    """The copies of blocks before a step: pairs of the block to read and the block to write."""

    swapped_in: list[tuple[int, int]]
    """From host memory to the device."""
    swapped_out: list[tuple[int, int]]
    """From the device to host memory."""
    copied: list[tuple[int, int]]
    """On the device."""


def block_moves(step: Step) -> BlockMoves:
    """Returns the copies of blocks before a step; empty lists if the engine names none."""
    execute = step.execute
    if execute is None:
        return BlockMoves([], [], [])
    return BlockMoves(execute.blocks_to_swap_in, execute.blocks_to_swap_out, execute.blocks_to_copy)


def scheduled_requests(step: Step) -> Iterator[str]:
    """Yields the ids of the requests in the batch of a step, in its order, each once."""
    if step.execute is None:
        ids = [update.request_id for update in step.sequences if update.chunk is not None]
        yield from dict.fromkeys(filter(None, ids))
    else:
        for group in step.execute.seq_group_metadata_list:
            yield group.request_id


def num_scheduled_requests(step: Step) -> int:
    """Returns the number of requests in the batch of a step."""
    if step.execute is None:
        return len({update.request_id for update in step.sequences if update.chunk is not None})
    return len(step.execute.seq_group_metadata_list)


class ScheduledSequence(NamedTuple):
    """A sequence in an `ExecuteModelRequest`."""

    is_full: bool
    """True if it is in full metadata, and false if it is in a delta."""
    num_computed_tokens: int
    """The computed tokens after the step, if it advances by its chunk."""


def scheduled_sequences(execute: ExecuteModelRequest) -> dict[int, ScheduledSequence]:
    """Returns the sequences in a request to a worker, by their ids."""
    sequences: dict[int, ScheduledSequence] = {}
    for group in execute.seq_group_metadata_list:
        chunk = group.token_chunk_size or 1
        if isinstance(group, SequenceGroupMetadataDelta):
            for seq_id, delta in group.seq_data_delta.items():
                num_tokens = delta.new_num_computed_tokens + chunk
                sequences[seq_id] = ScheduledSequence(False, num_tokens)
        else:
            for seq_id, data in group.seq_data.items():
                num_tokens = data.get_num_computed_tokens() + chunk
                sequences[seq_id] = ScheduledSequence(True, num_tokens)
    return sequences


def without_tables(execute: ExecuteModelRequest) -> ExecuteModelRequest:
    """Returns a request to a worker without the block tables of its deltas."""
    groups = [
        replace(group, block_tables={}, computed_block_nums=None)
        if isinstance(group, SequenceGroupMetadataDelta)
        else group
        for group in execute.seq_group_metadata_list
    ]
    return replace(execute, seq_group_metadata_list=groups)


def metadata_of(step: Step, request_id: str) -> SequenceGroupMetadataLike | None:
    """Returns the metadata or the delta of a request in the batch; `None` if there is none."""
    groups = step.execute.seq_group_metadata_list if step.execute is not None else ()
    return next((group for group in groups if group.request_id == request_id), None)


def full_metadata_of(step: Step, request_id: str) -> SequenceGroupMetadata | None:
    """Returns the full metadata of a request, if a step has it."""
    metadata = metadata_of(step, request_id)
    return metadata if isinstance(metadata, SequenceGroupMetadata) else None
