"""The sizes of the pools, and the longest sequence that follows from them."""

import pytest

from seqtop.sequence import (
    SequenceStatus,
)
from tests.support.running import MakeEngine, drain, greedy


def test_a_pool_smaller_than_the_model_limits_the_length(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=6, max_model_len=200)
    assert engine.config.max_model_len == 24
    (group,) = engine.add_request("r", [1] * 10, greedy(100))
    records = drain(engine)
    assert group.first_seq.get_len() == 24
    assert group.first_seq.status is SequenceStatus.FINISHED_LENGTH_CAPPED
    assert not any(record.preemptions for record in records)


def test_open_settings_are_filled_in(make_engine: MakeEngine) -> None:
    config = make_engine(num_gpu_blocks=None, device="auto").config
    assert config.device in ("cpu", "cuda")
    assert config.dtype == "float32"
    assert config.max_model_len == 256
    # As many as all sequences can ever use: the model is tiny.
    assert config.num_gpu_blocks == config.max_num_seqs * 256 // 4
    config = make_engine(enable_chunked_prefill=False, max_num_batched_tokens=100).config
    assert config.max_model_len == 100


def test_the_pool_to_swap_to_is_as_large_as_the_other_within_limits(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapping = {"num_gpu_blocks": 24, "preemption_mode": "swap"}
    assert make_engine(num_gpu_blocks=24).config.num_cpu_blocks == 0
    assert make_engine(**swapping).config.num_cpu_blocks == 24
    # A block has 2 layers of 4 slots with keys and values of 32 numbers each.
    most_bytes = 10 * (2 * 4 * 2 * 32 * 4) + 1
    monkeypatch.setattr("engine_stub.worker.pool_sizes.HOST_POOL_BYTES", most_bytes)
    assert make_engine(**swapping).config.num_cpu_blocks == 10
    assert make_engine(**swapping, num_cpu_blocks=11).config.num_cpu_blocks == 11
