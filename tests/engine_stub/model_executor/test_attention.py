"""Attention through block tables is attention over the sequences."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine_stub.model_executor.attention import (
    AttentionSegment,
    PagedAttention,
    attention_contexts,
)
from engine_stub.model_executor.kv_cache import PagedKVCache

CPU = torch.device("cpu")


def attend_in_two_steps(window: int | None, length: int, table: list[int]) -> torch.Tensor:
    """Attends to a prompt of all tokens but the last, then to the last one through the table."""
    cache = PagedKVCache(1, 8, 2, 4, 16, device=CPU, dtype=torch.float32, windows=(window,))
    torch.manual_seed(0)
    q, kv = torch.randn(length, 4, 16), torch.randn(length, 2, 32)
    slots = torch.tensor([table[i // 4] * 4 + i % 4 for i in range(length)])
    prompt = AttentionSegment(0, length - 1, 1, None)
    first = PagedAttention(cache, slots[:-1], [prompt])(0, q[:-1], kv[:-1])
    positions = torch.tensor([[length - 1]])
    (context,) = attention_contexts(cache, [table], positions, [1])
    decode = AttentionSegment(0, 1, 1, context)
    last = PagedAttention(cache, slots[-1:], [decode])(0, q[-1:], kv[-1:])
    attended = torch.cat((first, last))
    keys = torch.arange(length)
    is_seen = keys <= keys[:, None]
    if window is not None:
        is_seen &= keys > keys[:, None] - window
    k, v = (part.transpose(0, 1) for part in kv.chunk(2, dim=-1))
    expected = scaled_dot_product_attention(
        q.transpose(0, 1), k, v, attn_mask=is_seen, enable_gqa=True
    )
    torch.testing.assert_close(attended, expected.transpose(0, 1))
    return attended


def test_a_prompt_and_a_decode() -> None:
    attend_in_two_steps(None, 11, [5, 0, 3])


def test_a_sliding_window_hides_what_lies_before_it() -> None:
    with_window = attend_in_two_steps(6, 11, [5, 0, 3])
    assert not torch.allclose(with_window, attend_in_two_steps(None, 11, [5, 0, 3]))
