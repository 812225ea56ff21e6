"""The description of an engine, of what a scheduler of SGLang has."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.sglang.engine_description import describe
from seqtop.transport.publisher_settings import PublisherSettings


@pytest.mark.parametrize(
    ("lora_manager", "expected"), [(None, None), (SimpleNamespace(lora_refs={}), 3)]
)
def test_slots_of_lora_adapters(
    lora_manager: Any, expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is set without adapters, too; without it, none in use are counted."""
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(__version__="0.5.23"))
    scheduler = SimpleNamespace(
        model_config=SimpleNamespace(dtype="torch.float16", context_len=1024),
        server_args=SimpleNamespace(model_path="stories"),
        ps=SimpleNamespace(dp_rank=None),
        page_size=16,
        max_total_num_tokens=256,
        max_running_requests=8,
        max_prefill_tokens=64,
        tree_cache=SimpleNamespace(),
        max_loras_per_batch=3,
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(lora_manager=lora_manager)),
    )
    described = describe(scheduler, PublisherSettings(bind="ipc:///run/engine"))
    assert described.max_loras == expected
    assert (described.num_gpu_blocks, described.engine) == (17, "SGLang 0.5.23")
