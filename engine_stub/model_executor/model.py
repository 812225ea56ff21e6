"""A decoder of the Llama family over a flat batch of tokens.

Llama, Mistral, Qwen2 and Qwen3 differ in a few settings of `ModelConfig`: biases, a norm on queries
and keys, rotary scaling. Sliding windows are part of `attend`.

All tokens of all sequences of a step form one dimension, ``[T]``, each with its own position. The
decoder has no notion of sequences: the caller passes `attend`, which gets each layer's queries,
keys and values and determines the tokens that each token attends to. The engine's `attend` keeps
keys and values in a paged cache; that of training is plain causal attention.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.model_executor.rotary import RotaryEmbedding
from engine_stub.model_executor.stages import Stage
from engine_stub.platforms.interface import KVSlots, LayerKernels, Rotation
from engine_stub.platforms.torch_layers import TORCH_LAYERS
from seqtop.sequence import IntermediateTensors

WHOLE = Stage()


class AttentionFn(Protocol):
    """Attention over the keys and values that the caller manages."""

    def kv_slots(self, layer_idx: int) -> KVSlots | None:
        """Returns the slots that a layer's keys and values are written to; None to keep none."""
        ...

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Computes the attention of a layer.

        Args:
            layer_idx: The position of the layer in its stage.
            q: Queries after rotary embedding, ``[T, n_heads, head_dim]``.
            kv: The step's own keys after rotary embedding, each with its value beside it,
                ``[T, n_kv_heads, 2 * head_dim]``. They are in the layer's `kv_slots` already.

        Returns:
            ``[T, n_heads, head_dim]``.
        """
        ...


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, size: int, eps: float, kernels: LayerKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """Adds `added` to ``x [..., size]``; returns the sum, and its norm."""
        return self.kernels.add_rms_norm(x, added, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with one fused projection for queries, keys and values."""

    def __init__(self, config: ModelConfig, layer_idx: int, kernels: LayerKernels) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.kernels = kernels
        self.head_dim = config.head_dim
        self.n_heads = config.num_attention_heads
        self.n_kv_heads = config.num_key_value_heads
        fused = (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, fused, bias=config.qkv_bias)
        self.o_proj = nn.Linear(
            self.n_heads * self.head_dim, config.hidden_size, bias=config.o_bias
        )
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, kernels)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, kernels)
        self.qk_norm = config.qk_norm

    def forward(self, x: Tensor, rotation: Rotation, attend: AttentionFn) -> Tensor:
        """Maps ``x [T, hidden]`` to ``[T, hidden]``."""
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim))
        norm = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps) if self.qk_norm else None
        kv_slots = attend.kv_slots(self.layer_idx)
        q, kv = self.kernels.rotate_and_write(heads, self.n_kv_heads, norm, rotation, kv_slots)
        attended = attend(self.layer_idx, q, kv)
        projected: Tensor = self.o_proj(attended.flatten(1))
        return projected


class MLP(nn.Module):
    """SwiGLU feed-forward with the gate and up projections fused."""

    def __init__(self, config: ModelConfig, kernels: LayerKernels) -> None:
        super().__init__()
        self.kernels = kernels
        hidden, intermediate, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = nn.Linear(hidden, 2 * intermediate, bias=bias)
        self.down_proj = nn.Linear(intermediate, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x [T, hidden]`` to ``[T, hidden]``."""
        activated = self.kernels.silu_and_mul(self.gate_up_proj(x))
        projected: Tensor = self.down_proj(activated)
        return projected


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each after a norm and added to the residual stream.

    The norm that comes next makes each addition, in one kernel with its own work.
    """

    def __init__(self, config: ModelConfig, layer_idx: int, kernels: LayerKernels) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, kernels)
        self.self_attn = Attention(config, layer_idx, kernels)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, kernels)
        self.mlp = MLP(config, kernels)

    def forward(
        self, x: Tensor, added: Tensor | None, rotation: Rotation, attend: AttentionFn
    ) -> tuple[Tensor, Tensor]:
        """Runs the layer on the stream ``x [T, hidden]``, to which `added` is still to be added.

        Returns:
            The stream, and what is now to be added to it.
        """
        x, normed = self.input_layernorm(x, added)
        x, normed = self.post_attention_layernorm(x, self.self_attn(normed, rotation, attend))
        return x, self.mlp(normed)


class Layers(nn.ModuleDict):
    """The layers of a stage, by their names in the checkpoint."""

    def forward(
        self, x: Tensor, rotation: Rotation, attend: AttentionFn
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the residual stream after ``x [T, hidden]``, and what is to be added to it."""
        added = None
        for layer in self.values():
            x, added = layer(x, added, rotation, attend)
        return x, added


class Decoder(nn.Module):
    """The model: embedding, layers, final norm, and the projection onto the vocabulary.

    Args:
        config: The shape of the model.
        stage: The part of the model to build.
        embeds: Whether to include the embedding in any stage.
        kernels: The device's kernels for the layers; the default runs on any device, and backward.
    """

    def __init__(
        self,
        config: ModelConfig,
        stage: Stage = WHOLE,
        *,
        embeds: bool = False,
        kernels: LayerKernels = TORCH_LAYERS,
    ) -> None:
        super().__init__()
        self.config = config
        self.stage = stage
        if embeds or stage.is_first or (stage.is_last and config.tie_word_embeddings):
            # Not drawn at random: on the meta device that imports torch's compiler, for a second.
            shape = config.vocab_size, config.hidden_size
            self.embed_tokens = nn.Embedding(*shape, _weight=torch.zeros(shape))
        self.rotary = RotaryEmbedding(config)
        # Named by their positions in the whole model, as in the checkpoint; `attend` counts layers
        # within this stage.
        self.layers = Layers(
            {
                str(layer): DecoderLayer(config, layer_idx, kernels)
                for layer_idx, layer in enumerate(stage.layers(config.num_hidden_layers))
            }
        )
        if stage.is_last:
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, kernels)
            if not config.tie_word_embeddings:
                self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attend: AttentionFn,
        intermediate_tensors: IntermediateTensors | None = None,
    ) -> Tensor:
        """Runs the layers.

        Args:
            input_ids: ``[T]`` int64, the tokens of every sequence of the step, one after another.
            positions: ``[T]`` int64, each token's index within its own sequence.
            attend: The attention, called once per layer.
            intermediate_tensors: The output of the stage before, as ``hidden_states``; None in
                the first stage.

        Returns:
            Hidden states, ``[T, hidden]``; those of the last stage after the final norm.
        """
        x: Tensor = (
            self.embed_tokens(input_ids)
            if intermediate_tensors is None
            else intermediate_tensors["hidden_states"]
        )
        added: Tensor
        x, added = self.layers(x, self.rotary(positions, x.dtype), attend)
        if not self.stage.is_last:
            return x + added
        normed: Tensor = self.norm(x, added)[1]
        return normed

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Projects ``hidden [N, hidden]`` onto the vocabulary: ``[N, vocab]`` float32."""
        head = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return F.linear(hidden, head.weight).float()
