"""Attention by tiles equals attention by segments, for random steps."""

import random

import pytest
import torch

from engine_stub.model_executor.attention import PagedAttention
from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.platforms.torch_attention import TorchAttention
from engine_stub.spec_decode.speculation import Draft
from engine_stub.worker.input_batch import prepare_batch
from engine_stub.worker.step_inputs import KernelAttention
from seqtop.sequence import SamplingParams, SequenceData, SequenceGroupMetadata


def random_groups(
    rng: random.Random, block_size: int, num_blocks: int
) -> tuple[list[SequenceGroupMetadata], dict[int, Draft]]:
    groups, drafts = [], {}
    free = list(range(num_blocks))
    rng.shuffle(free)
    for seq_id in range(rng.randint(1, 9)):
        length = rng.choice((rng.randint(1, 9), rng.randint(1, 60), 24))
        computed = rng.choice((0, length - 1, rng.randrange(length)))
        chunk = rng.choice((length - computed, rng.randint(1, length - computed)))
        data = SequenceData.from_seqs([rng.randrange(100) for _ in range(length)])
        data.update_num_computed_tokens(computed)
        draft = [1] * rng.choice((0, 0, 2)) if computed and chunk == length - computed == 1 else []
        if draft:
            drafts[seq_id] = Draft(draft)
        table = [free.pop() for _ in range(-(-(length + len(draft)) // block_size))]
        groups.append(
            SequenceGroupMetadata(
                request_id=f"r{seq_id}",
                is_prompt=chunk > 1,
                seq_data={seq_id: data},
                sampling_params=SamplingParams(temperature=0),
                block_tables={seq_id: table},
                do_sample=computed + chunk == length,
                token_chunk_size=chunk,
            )
        )
    return groups, drafts


@pytest.mark.parametrize("start", range(0, 600, 100))
def test_tiles_and_segments_agree(start: int) -> None:
    for seed in range(start, start + 100):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        block_size, kv_heads, heads_per_kv = rng.choice((1, 4, 16)), rng.choice((1, 2)), 3
        window = rng.choice((None, None, 5, 30))
        # Large heads, so that some steps are gathered in several pieces.
        head_dim = rng.choice((8, 8, 256))
        num_blocks = 9 * -(-70 // block_size)
        cache = PagedKVCache(
            2, num_blocks, kv_heads, block_size, head_dim,
            device=torch.device("cpu"), dtype=torch.float32, windows=(window, None),
        )  # fmt: skip
        cache.pool.normal_()
        pool = cache.pool.clone()
        groups, drafts = random_groups(rng, block_size, num_blocks)
        results = []
        batches = []
        for kernels in (None, TorchAttention().kernels):
            cache.pool.copy_(pool)
            cache.kernels, cache.tile_size = kernels, 2**31
            batch = prepare_batch(groups, cache, drafts)
            batches.append(batch)
            assert isinstance(batch.attend, KernelAttention if kernels else PagedAttention)
            generator = torch.Generator().manual_seed(seed)
            num_tokens = len(batch.input_ids)
            for layer in (0, 1, 0):
                q = torch.randn(num_tokens, kv_heads * heads_per_kv, head_dim, generator=generator)
                kv = torch.randn(num_tokens, kv_heads, 2 * head_dim, generator=generator)
                results.append(batch.attend(layer, q, kv))
            results.append(cache.pool.clone())
        old, new = results[:4], results[4:]
        assert torch.equal(batches[0].input_ids, batches[1].input_ids)
        assert torch.equal(batches[0].positions, batches[1].positions)
        assert torch.equal(batches[0].sample_indices, batches[1].sample_indices)
        for mine, theirs in zip(new, old, strict=True):
            torch.testing.assert_close(mine, theirs)
