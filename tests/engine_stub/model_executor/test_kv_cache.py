"""Blocks of the pool are copied and swapped as a whole."""

import torch

from engine_stub.model_executor.kv_cache import PagedKVCache

CPU = torch.device("cpu")


def test_blocks_are_copied_and_swapped_as_a_whole() -> None:
    cache = PagedKVCache(1, 8, 2, 4, 16, device=CPU, dtype=torch.float32, num_cpu_blocks=2)
    cache.pool.normal_()
    before = cache.pool.clone()
    cache.copy_blocks([(1, 4)])
    assert torch.equal(cache.pool[:, 4], before[:, 1])
    cache.swap_out([(2, 1), (3, 0)])
    cache.pool.zero_()
    cache.swap_in([(1, 6), (0, 7)])
    assert torch.equal(cache.pool[:, 6], before[:, 2])
    assert torch.equal(cache.pool[:, 7], before[:, 3])
    assert not cache.pool[:, :6].any()
