"""Attention over a paged KV cache: write the step's keys and values, then attend through tables.

The pool's layout is ``[layers, blocks, block_size, kv_heads, 2 * head_dim]``: a slot holds the keys
of all heads, each with its value beside it. So a token is one row, and so is a block, and gathering
the blocks of a table gives a sequence's keys and values by plain copies. All index tensors and
masks are made once per step; a layer only gathers and multiplies.

The step's tokens lie one after another in *segments* of sequences with equally many queries, so
that each segment is one call of torch's attention. Padding within a segment is masked and, in
layers with a sliding window, what lies before it; blocks before the window are still kept and read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as cache_results
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine_stub.platforms.cuda import to_device

# Blocks on their way to the host's pool or back are copied once more, so many at a time.
_SWAPPED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """Keys and values from the pool, for a segment.

    Attributes:
        blocks: ``[num_seqs * blocks]``, those of the pool that hold them.
        gathered: ``[num_seqs * blocks, block_size * kv_heads * 2 * head_dim]``, where a layer puts
            them; all segments and layers use the same memory, one after another.
        keys: ``[num_seqs, kv_heads, blocks * block_size, head_dim]``, a view of `gathered`.
        values: Likewise.
        masks: By the layer's window, ``[num_seqs, 1, queries, blocks * block_size]`` in the model's
            dtype: 0 where a query sees a key and minus infinity elsewhere.
    """

    blocks: Tensor
    gathered: Tensor
    keys: Tensor
    values: Tensor
    masks: dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """Keys and values of a segment of decodes, copied from the pool in earlier steps.

    All have an entry for each layer.

    Attributes:
        new_keys: ``[num_seqs * kv_heads, 1, head_dim]``, where the step's own go.
        new_values: Likewise.
        keys: ``[num_seqs * kv_heads, head_dim, tokens]``, the newest last.
        values: ``[num_seqs * kv_heads, tokens, head_dim]``.
        masks: ``[num_seqs * kv_heads, 1, tokens]``, as in `AttentionContext`.
        are_needed: Whether a mask hides anything; it does not among sequences of equal lengths.
    """

    new_keys: Sequence[Tensor]
    new_values: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    masks: Sequence[Tensor]
    are_needed: Sequence[bool]


@dataclass(frozen=True, slots=True)
class AttentionSegment:
    """Consecutive tokens of sequences whose attention is computed in one call.

    Attributes:
        start: Index of the first token in the step.
        end: Index after the last token.
        num_seqs: Sequences; each has ``(end - start) / num_seqs`` tokens.
        context: What its tokens see; None if that is nothing but each other.
    """

    start: int
    end: int
    num_seqs: int
    context: AttentionContext | DecodeContext | None


class PagedKVCache:
    """The pool of keys and values of all layers.

    Attributes:
        pool: ``[layers, num_blocks + 1, block_size, kv_heads, 2 * head_dim]``.
        scratch_block: The last one, which is nobody's: rows that pad a step write to it.
        host_pool: ``[num_cpu_blocks, layers, block_size, kv_heads, 2 * head_dim]`` in host memory;
            pinned for CUDA.
        block_rows: For each layer a view of the pool, a row per block:
            ``[num_blocks + 1, block_size * kv_heads * 2 * head_dim]``.
        slot_rows: For each layer a view of the pool, a row per slot:
            ``[(num_blocks + 1) * block_size, kv_heads, 2 * head_dim]``.
        windows: For each layer, the last tokens that a query sees, itself among them; None for
            all.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        windows: tuple[int | None, ...] = (),
        num_cpu_blocks: int = 0,
    ) -> None:
        self.windows = windows or (None,) * num_layers
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_dim = head_dim
        self.scratch_block = num_blocks
        shape = (num_layers, num_blocks + 1, block_size, num_kv_heads, 2 * head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)
        host_shape = (num_cpu_blocks, num_layers, *shape[2:])
        is_pinned = device.type == "cuda" and num_cpu_blocks > 0
        self.host_pool = torch.zeros(host_shape, dtype=dtype, pin_memory=is_pinned)
        self.block_rows = list(self.pool.flatten(2).unbind(0))
        self.slot_rows = list(self.pool.flatten(1, 2).unbind(0))
        self._workspace = self.pool.new_empty(0)

    @staticmethod
    def bytes_per_block(
        num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes that one block takes over all layers."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.itemsize

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks to host memory, by ``(device block, host block)``.

        Between pinned memory and CUDA, nobody waits for a copy of what is contiguous. Only such
        copies touch the host's pool, all on one stream, so that they take place in order.
        """
        for start in range(0, len(pairs), _SWAPPED_AT_ONCE):
            chunk = pairs[start : start + _SWAPPED_AT_ONCE]
            sources, destinations = zip(*chunk, strict=True)
            content = self.pool.index_select(1, to_device(sources, self.pool.device))
            for row, block in zip(content.transpose(0, 1).contiguous(), destinations, strict=True):
                self.host_pool[block].copy_(row, non_blocking=True)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks back from host memory, by ``(host block, device block)``."""
        for start in range(0, len(pairs), _SWAPPED_AT_ONCE):
            chunk = pairs[start : start + _SWAPPED_AT_ONCE]
            sources, destinations = zip(*chunk, strict=True)
            content = self.pool.new_empty(len(chunk), *self.host_pool.shape[1:])
            for row, block in zip(content, sources, strict=True):
                row.copy_(self.host_pool[block], non_blocking=True)
            blocks = to_device(destinations, self.pool.device)
            self.pool.index_copy_(1, blocks, content.transpose(0, 1))

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks on the device, by ``(source, destination)``; no source is written to."""
        if pairs:
            sources, destinations = zip(*pairs, strict=True)
            content = self.pool.index_select(1, to_device(sources, self.pool.device))
            self.pool.index_copy_(1, to_device(destinations, self.pool.device), content)

    def contexts(
        self, block_tables: list[list[int]], positions: Tensor, sizes: list[int]
    ) -> list[AttentionContext]:
        """Prepare reading block tables, for segments of as many sequences as `sizes` says.

        Args:
            block_tables: In order of length.
            positions: ``[tables, queries]`` on the pool's device, each query's index in its
                sequence: it sees the keys up to its own.
        """
        width = len(block_tables[-1])
        padded = [table + [0] * (width - len(table)) for table in block_tables]
        tables = to_device([*chain(*padded)], self.pool.device).view(-1, width)
        masks = self.masks(positions, width)
        contexts = []
        end = 0
        for size in sizes:
            start, end = end, end + size
            blocks = tables[start:end, : len(block_tables[end - 1])]
            num_keys = blocks.shape[1] * self.block_size
            own_masks = {window: mask[start:end, ..., :num_keys] for window, mask in masks.items()}
            contexts.append(self.context(blocks, own_masks, self._room_for(blocks.numel())))
        return contexts

    def masks(self, positions: Tensor, num_blocks: int) -> dict[int | None, Tensor]:
        """By each layer's window what queries at ``positions [tables, queries]`` see of tables."""
        keys = torch.arange(num_blocks * self.block_size, device=self.pool.device)
        queries = positions[:, None, :, None]
        windows = dict.fromkeys(self.windows)
        return {window: self._mask(queries, keys, window) for window in windows}

    def _mask(self, positions: Tensor, keys: Tensor, window: int | None) -> Tensor:
        """0 where a query at one of `positions` sees a key, else minus infinity; broadcasts."""
        unseen = keys > positions
        if window is not None:
            unseen |= keys <= positions - window
        mask = torch.zeros(unseen.shape, dtype=self.pool.dtype, device=self.pool.device)
        return mask.masked_fill_(unseen, -torch.inf)

    def prompt_mask(self, length: int, window: int) -> Tensor:
        """What tokens of a sequence of `length` see of each other: ``[1, 1, length, length]``."""
        positions = torch.arange(length, device=self.pool.device)
        return self._mask(positions[None, None, :, None], positions, window)

    def _room_for(self, num_blocks: int) -> Tensor:
        """Rows for as many blocks, of memory that all eager steps share."""
        if len(self._workspace) < num_blocks:
            self._workspace = self.block_rows[0].new_empty(num_blocks, self.block_rows[0].shape[1])
        return self._workspace[:num_blocks]

    def context(
        self, blocks: Tensor, masks: dict[int | None, Tensor], gathered: Tensor
    ) -> AttentionContext:
        """A segment that reads ``blocks [num_seqs, blocks]``; the rest is `AttentionContext`'s."""
        heads = gathered.view(len(blocks), -1, self.num_kv_heads, 2 * self.head_dim).transpose(1, 2)
        keys, values = heads.chunk(2, dim=-1)
        return AttentionContext(blocks.flatten(), gathered, keys, values, masks)


NO_SLOTS = torch.empty(0, dtype=torch.int64)


class PagedAttention:
    """One step's `attend` for the decoder.

    Args:
        cache: The pool, which is written.
        slots: ``[T]``, the row of `PagedKVCache.slot_rows` that each token's keys and values go to;
            `NO_SLOTS` if the decode cache takes them all, and the pool gets them later.
        segments: The step's tokens, all of them and in order.
    """

    def __init__(
        self, cache: PagedKVCache, slots: Tensor, segments: list[AttentionSegment]
    ) -> None:
        self.cache = cache
        self.slots = slots
        self.segments = segments
        # Of this step, for all layers.
        self._prompt_mask = cache_results(cache.prompt_mask)
        self._repeated = cache_results(_repeated)

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Attend with ``q [T, heads, head_dim]``; ``kv`` is ``[T, kv_heads, 2 * head_dim]``.

        Returns ``[T, heads, head_dim]``.
        """
        if self.slots is not NO_SLOTS:
            self.cache.slot_rows[layer_idx].index_copy_(0, self.slots, kv)
        if len(self.segments) == 1:
            return self._attend(self.segments[0], layer_idx, q, kv)
        outputs = []
        for segment in self.segments:
            tokens = slice(segment.start, segment.end)
            outputs.append(self._attend(segment, layer_idx, q[tokens], kv[tokens]))
        return torch.cat(outputs)

    def grouped(self, layer_idx: int, groups: Tensor) -> Tensor:
        """The same for ``groups [T, kv_heads, heads_per_kv_head + 2, head_dim]``.

        Each is the queries that share a key, the key, and its value. For decodes on a CPU, they are
        operands as they are.

        Returns ``[T, heads * head_dim]``.
        """
        if self.slots is not NO_SLOTS:
            kv = groups[:, :, -2:].flatten(2)
            self.cache.slot_rows[layer_idx].index_copy_(0, self.slots, kv)
        outputs = []
        for segment in self.segments:
            own = groups[segment.start : segment.end]
            if isinstance(segment.context, DecodeContext):
                attended = _attend_to_copy(segment.context, layer_idx, own.flatten(0, 1))
                outputs.append(attended.view(own.shape[0], -1))
            else:
                q, kv = own[:, :, :-2].flatten(1, 2), own[:, :, -2:].flatten(2)
                outputs.append(self._attend(segment, layer_idx, q, kv).flatten(1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, segment: AttentionSegment, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Attention of a segment's tokens."""
        context = segment.context
        if isinstance(context, DecodeContext):
            grouped, own = (x.view(len(kv), kv.shape[1], -1, q.shape[-1]) for x in (q, kv))
            groups = torch.cat((grouped, own), dim=2).flatten(0, 1)
            return _attend_to_copy(context, layer_idx, groups).view(q.shape)
        q = _by_sequence(q, segment.num_seqs)
        if context is None:
            out = self._attend_within(layer_idx, q, _by_sequence(kv, segment.num_seqs))
        else:
            out = self._attend_to(context, layer_idx, q)
        return out.transpose(1, 2).flatten(0, 1)

    def _attend_within(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Causal attention of sequences that begin with this step."""
        k, v = kv.chunk(2, dim=-1)
        window, length = self.cache.windows[layer_idx], q.shape[2]
        if window is None or length <= window:
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self._attend_masked(q, k, v, self._prompt_mask(length, window))

    def _attend_to(self, context: AttentionContext, layer_idx: int, q: Tensor) -> Tensor:
        """Attention to keys and values from the pool, the step's own among them."""
        pool = self.cache.block_rows[layer_idx]
        torch.index_select(pool, 0, context.blocks, out=context.gathered)
        mask = context.masks[self.cache.windows[layer_idx]]
        return self._attend_masked(q, context.keys, context.values, mask)

    def _attend_masked(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attention where ``mask [sequences or 1, 1, queries, tokens]`` says what is seen.

        The query heads that share a key head become that head's queries. On CUDA, the kernels that
        take masks would have keys repeated for each head; without one, all scores are written out.
        A mask may be for all these queries already.
        """
        grouped = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])
        if mask.shape[2] not in (1, grouped.shape[2]):
            mask = self._repeated(mask, q.shape[1] // keys.shape[1])
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return out.reshape(q.shape)


def choose_kernels() -> None:
    """Have torch choose among its kernels for CUDA without those of cuDNN.

    It prefers them on some GPUs, but they are built for a shape when it comes first, which takes
    tenths of a second, and steps with prompts hardly ever have the same shape twice.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def _by_sequence(x: Tensor, num_seqs: int) -> Tensor:
    """``x [T, heads, size]`` as ``[num_seqs, heads, T / num_seqs, size]``."""
    return x.view(num_seqs, -1, *x.shape[1:]).transpose(1, 2)


def _repeated(mask: Tensor, times: int) -> Tensor:
    """A mask for the queries of several heads, one head's after another's."""
    return mask.repeat(1, 1, times, 1)


def _attend_to_copy(context: DecodeContext, layer_idx: int, groups: Tensor) -> Tensor:
    """Attention of one token per sequence, written out: products are faster on a CPU.

    Args:
        groups: ``[num_seqs * kv_heads, heads_per_kv_head + 2, head_dim]``, see `grouped`. The
            queries of each are the rows of one product.

    Returns ``[num_seqs * kv_heads, heads_per_kv_head, head_dim]``.
    """
    q, k, v = groups.split_with_sizes((groups.shape[1] - 2, 1, 1), dim=1)
    context.new_keys[layer_idx].copy_(k)
    context.new_values[layer_idx].copy_(v)
    scale = q.shape[-1] ** -0.5
    mask, beta = context.masks[layer_idx], context.are_needed[layer_idx]
    scores = torch.baddbmm(mask, q, context.keys[layer_idx], beta=beta, alpha=scale)
    return torch.bmm(scores.softmax(-1), context.values[layer_idx])
