"""Settings that cannot work are refused."""

from typing import Any

import pytest

from engine_stub.config import EngineConfig
from tests.support.running import MakeEngine


def test_speculation_and_multi_step_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other; choose one"):
        EngineConfig(speculative="ngram", num_scheduler_steps=2)
    with pytest.raises(ValueError, match="speculative must be ngram or draft-head or None"):
        EngineConfig(speculative="magic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"block_size": 0}, "block_size"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "a token per step"),
        ({"enable_chunked_prefill": False, "max_model_len": 1000}, "without chunked prefill"),
        ({"max_model_len": 300}, "256 positions"),
        ({"device": "tpu"}, "device must be"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"gpu_memory_utilization": 0.0}, "above 0 and at most 1, got 0"),
        ({"gpu_memory_utilization": 1.1}, "above 0 and at most 1, got 1.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    make_engine: MakeEngine, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        make_engine(**fields)
