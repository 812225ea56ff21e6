"""A decoder's layers for inference on a CPU in float32: the same sums in fewer operations.

A step of decodes is a few rows through every weight, and most of what `DecoderLayer` does besides
takes longer to begin than to do. What is different here:

* A norm is a division by a length. Its weight is multiplied into the projection that follows, and
  its epsilon is part of the length: the stream has some channels more, which never change.
* Of each query and key, the two channels that are rotated together lie side by side, so that they
  are one complex number; the queries that share a key lie before it, and its value beside it. One
  multiplication in place turns them all, the values by nothing, and attention takes them as they
  lie. Scores do not depend on the order of channels.
* Weights are in the layout that MKL packs them into for its own use. Measured on AVX-512 cores,
  products take 0.6 to 0.9 of the time with it, but up to 1.3 times as long for one to three rows.
  So small models have both layouts.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.model_executor.model import Decoder, DecoderLayer, RMSNorm
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.model_executor.rotary import RotaryEmbedding

# MKL asks for how many rows it is to pack a weight, and takes any number of them afterwards.
# Packed for 256, steps of all sizes are fast.
_PACKED_FOR_ROWS = 256
# The fewest rows for which the packed layout is the faster one.
_FEWEST_PACKED_ROWS = 4
# The most bytes of weights to hold in both layouts.
_MOST_PLAIN_BYTES = 2**30
# Channels that make a token's length what a norm divides by: as many as make a line of the cache.
_FLOOR_CHANNELS = 16


class GroupedAttend(Protocol):
    """Attention as `PagedAttention` has it."""

    def grouped(self, layer_idx: int, groups: Tensor) -> Tensor:
        """Attend with ``groups [T, kv_heads, heads_per_kv_head + 2, head_dim]``.

        Each is the queries that share a key, the key, and its value. Returns
        ``[T, heads * head_dim]``.
        """
        ...


def use_cpu_layers(decoder: Decoder) -> None:
    """Replace the layers of `decoder`, which is on a CPU in float32, for inference only."""
    keep_plain = sum(each.nbytes for each in decoder.layers.parameters()) <= _MOST_PLAIN_BYTES
    decoder.add_module("rotary", PairedRotaryEmbedding(decoder.rotary, decoder.config))
    layers: list[CpuLayer] = []
    # One at a time, so that not all weights are there twice.
    for name in [*decoder.layers]:
        layer = decoder.layers.pop(name)
        assert isinstance(layer, DecoderLayer)
        layers.append(CpuLayer(layer, decoder.config, keep_plain=keep_plain))
    norm = decoder.norm if decoder.stage.is_last else None
    decoder.add_module("layers", CpuLayers(layers, norm, decoder.config))
    decoder.add_module("norm", nn.Identity())


class CpuLayers(nn.Module):
    """All layers, and the final norm in the last stage."""

    def __init__(self, layers: list[CpuLayer], norm: RMSNorm | None, config: ModelConfig) -> None:
        super().__init__()
        self.layers = layers
        self.norm_weight: Tensor | None = None
        if norm is not None:
            self.norm_weight = norm.weight.detach() * math.sqrt(config.hidden_size)
        self.floor = math.sqrt(config.hidden_size * config.rms_norm_eps / _FLOOR_CHANNELS)
        self._stream = torch.empty(0, config.hidden_size + _FLOOR_CHANNELS)

    def forward(self, x: Tensor, turns: Tensor, attend: GroupedAttend) -> Tensor:
        """Map ``x [T, hidden]`` to ``[T, hidden]``."""
        if self._stream.shape[0] != x.shape[0]:  # seldom, in steps that decode
            self._stream = F.pad(x, (0, _FLOOR_CHANNELS), value=self.floor)
        stream = self._stream
        hidden = stream[:, :-_FLOOR_CHANNELS]
        hidden.copy_(x)
        for layer in self.layers:
            layer(hidden, stream, turns, attend)
        if self.norm_weight is None:
            return hidden.clone(memory_format=torch.contiguous_format)
        return _unit(hidden, stream) * self.norm_weight


class CpuLayer:
    """A `DecoderLayer` with its weights rearranged; no module, as calls of these take longer."""

    def __init__(self, layer: DecoderLayer, config: ModelConfig, *, keep_plain: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.layer_idx = attention.layer_idx
        self.head_dim = config.head_dim
        self.n_kv_heads = config.num_key_value_heads
        rows = _grouped_rows(config)
        qkv_bias = attention.qkv_proj.bias
        self.qkv_proj = _Linear(
            _with_norm(layer.input_layernorm, attention.qkv_proj.weight)[rows],
            None if qkv_bias is None else qkv_bias[rows],
            keep_plain=keep_plain,
        )
        self.o_proj = _Linear(attention.o_proj.weight, attention.o_proj.bias, keep_plain=keep_plain)
        self.gate_up_proj = _Linear(
            _with_norm(layer.post_attention_layernorm, mlp.gate_up_proj.weight),
            mlp.gate_up_proj.bias,
            keep_plain=keep_plain,
        )
        self.gate_up_sizes = [config.intermediate_size] * 2
        self.down_proj = _Linear(mlp.down_proj.weight, mlp.down_proj.bias, keep_plain=keep_plain)
        self.head_norms: tuple[Tensor, Tensor] | None = None
        if attention.qk_norm:
            pairs = _pairs(config.head_dim)
            q_norm, k_norm = (
                _with_norm(norm, norm.weight.new_ones(config.head_dim))[pairs]
                for norm in (attention.q_norm, attention.k_norm)
            )
            self.head_norms = q_norm, k_norm
            self.head_norm_floor = torch.tensor(math.sqrt(config.head_dim * attention.q_norm.eps))

    def __call__(self, x: Tensor, stream: Tensor, turns: Tensor, attend: GroupedAttend) -> None:
        """Add attention's and the feed-forward's part to ``x [T, hidden]``.

        Args:
            stream: ``[T, hidden + _FLOOR_CHANNELS]``, of which `x` are the first channels.
        """
        qkv = self.qkv_proj(_unit(x, stream))
        groups = qkv.view(x.shape[0], self.n_kv_heads, -1, self.head_dim)
        if self.head_norms is not None:
            self._norm_heads(groups, *self.head_norms)
        qkv.view(turns.dtype).mul_(turns)
        self.o_proj.add_to(x, attend.grouped(self.layer_idx, groups))
        gate_up = self.gate_up_proj(_unit(x, stream))
        gate, up = gate_up.split_with_sizes(self.gate_up_sizes, dim=-1)
        self.down_proj.add_to(x, F.silu(gate).mul_(up))

    def _norm_heads(self, groups: Tensor, q_norm: Tensor, k_norm: Tensor) -> None:
        """Norm the queries and keys of ``groups [T, kv_heads, heads per key + 2, head_dim]``."""
        for own, weight in ((groups[:, :, :-2], q_norm), (groups[:, :, -2], k_norm)):
            length = torch.linalg.vector_norm(own, dim=-1, keepdim=True)
            own.div_(length.hypot_(self.head_norm_floor)).mul_(weight)


class PairedRotaryEmbedding(nn.Module):
    """Rotary embedding for channels in pairs, as a complex number each."""

    def __init__(self, rotary: RotaryEmbedding, config: ModelConfig) -> None:
        super().__init__()
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float32)
        angles = positions[:, None] * rotary.inv_freq
        scale = torch.full_like(angles, rotary.attention_scaling)
        self.turns = F.pad(torch.polar(scale, angles), (0, 1), value=1.0)
        """``[max_position_embeddings, head_dim / 2 + 1]``, the last of which turns by nothing."""
        turning = torch.arange(config.head_dim // 2)
        still = torch.full_like(turning, len(turning))
        heads_per_key = config.num_attention_heads // config.num_key_value_heads
        group = [turning] * heads_per_key + [turning, still]
        self.columns = torch.cat(group * config.num_key_value_heads)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """What queries, keys and values of ``positions [T]`` are multiplied by.

        Returns ``[T, (n_heads + 2 * n_kv_heads) * head_dim / 2]``, complex.
        """
        return self.turns.index_select(0, positions).index_select(1, self.columns)


class _Linear:
    """`linear` with a weight of its own, in MKL's layout where torch has MKL.

    Args:
        keep_plain: Whether to hold on to the weight as it is, too, for steps of few rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, keep_plain: bool) -> None:
        weight = weight.detach().contiguous()
        self.bias = None if bias is None else bias.detach()
        self.packed: Tensor | None = None
        self.fewest_packed_rows: float = math.inf
        if torch.backends.mkl.is_available():  # type: ignore[no-untyped-call] # torch's
            self.fewest_packed_rows = _FEWEST_PACKED_ROWS if keep_plain else 0
            # To be called by the overload's own name, which need not be found each time.
            self._packed_product = torch.ops.mkl._mkl_linear.default
            self.packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, _PACKED_FOR_ROWS)
            if not keep_plain:
                # MKL's operator asks for it, and takes nothing from it but the shape.
                weight = weight.new_empty(()).expand(weight.shape)
        self.weight = weight
        self.transposed = weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        """Map ``x [T, in_features]`` to ``[T, out_features]``."""
        num_rows = x.shape[0]
        if num_rows >= self.fewest_packed_rows:
            out: Tensor = self._packed_product(x, self.packed, self.weight, self.bias, num_rows)
            return out
        if self.bias is None:
            return torch.mm(x, self.transposed)
        return torch.addmm(self.bias, x, self.transposed)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add what becomes of ``x [T, in_features]`` to ``total [T, out_features]``."""
        if self.bias is None and x.shape[0] < self.fewest_packed_rows:
            total.addmm_(x, self.transposed)
        else:
            total.add_(self(x))


def _unit(x: Tensor, stream: Tensor) -> Tensor:
    """``x [T, size]`` by the length of `stream`: `RMSNorm`, but for the factors of `_with_norm`."""
    length: Tensor = torch.linalg.vector_norm(stream, dim=-1, keepdim=True)
    return x / length


def _with_norm(norm: RMSNorm, weight: Tensor) -> Tensor:
    """The weight of a projection that takes what `_unit` gives, in the place of `norm`."""
    return weight.detach() * (norm.weight.detach() * math.sqrt(len(norm.weight)))


def _pairs(head_dim: int) -> Tensor:
    """The order of a head's channels in which those that are rotated together are neighbours."""
    return torch.arange(head_dim).view(2, -1).t().flatten()


def _grouped_rows(config: ModelConfig) -> Tensor:
    """The order of the rows of `Attention.qkv_proj`: queries, key and value of each key head."""
    n_heads, n_kv_heads = config.num_attention_heads, config.num_key_value_heads
    rows = torch.arange((n_heads + 2 * n_kv_heads) * config.head_dim).view(-1, config.head_dim)
    q, k, v = torch.split(rows, [n_heads, n_kv_heads, n_kv_heads])
    pairs = _pairs(config.head_dim)
    q = q[:, pairs].view(n_kv_heads, -1, config.head_dim)
    return torch.cat((q, k[:, None, pairs], v[:, None]), dim=1).flatten()
