"""The description of an engine, as an adapter's observers send it to the publisher."""

from typing import Any

from seqtop.adapters.observations import EngineStarted


def an_engine_started(**changes: Any) -> EngineStarted:
    """Returns the start of an engine with 12 blocks of 4 tokens."""
    fields: dict[str, Any] = {
        "engine": "an engine",
        "engine_id": "e",
        "model": "m",
        "dtype": "",
        "device": "",
        "start_time": 0.0,
        "block_size": 4,
        "num_gpu_blocks": 12,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "policy": "fcfs",
        "groups": [],
        "tokenizer": None,
        "tokenizer_revision": None,
        "data_parallel_rank": 0,
        "has_random_suffix": False,
        "num_reserved_blocks": 0,
    }
    return EngineStarted(**fields | changes)
