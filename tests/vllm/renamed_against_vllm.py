"""A vLLM in which an attribute that the adapter reads has another name.

Its columns are not available, for a reason that is said, and all others are true. Run by
`make test-vllm`, as `against_vllm.py`.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from types import CodeType, FunctionType
from typing import Any

import pytest
from stepped_against_vllm import prompt, report
from stepping import make_core, stepped
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler

from seqtop.adapters.vllm.hook import follow
from seqtop.export import text
from seqtop.live.session import Session
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.waiting import SECONDS


def rename(patch: pytest.MonkeyPatch, owner: Any, old: str) -> None:
    """Gives a method another name, also where vLLM calls it."""
    new = f"renamed_{old}"
    for caller in (BlockPool, KVCacheManager, Scheduler):
        for name, function in list(vars(caller).items()):
            if isinstance(function, FunctionType):
                code = renamed(function.__code__, old, new)
                patch.setattr(function, "__code__", code)
                assert vars(caller)[name] is function
    patch.setattr(owner, new, vars(owner)[old], raising=False)
    patch.delattr(owner, old)


def renamed(code: CodeType, old: str, new: str) -> CodeType:
    return code.replace(
        co_names=tuple(new if name == old else name for name in code.co_names),
        co_consts=tuple(
            renamed(co_const, old, new) if isinstance(co_const, CodeType) else co_const
            for co_const in code.co_consts
        ),
    )


@pytest.mark.parametrize(
    ("owner", "name", "keys"),
    [
        (BlockPool, "_maybe_evict_cached_block", ["cached_blocks", "prefix_misses"]),
        (KVCacheManager, "get_computed_blocks", ["why", "prefix_misses", "harm"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_of_a_renamed_attribute_are_not_available(
    owner: Any, name: str, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(num_gpu_blocks_override=20)
    rename(monkeypatch, owner, name)
    with stepped(core) as engine:
        for number in range(12):
            engine.add(f"req-{number}", prompt(number), max_tokens=30)
        for _ in range(6):
            engine.step()
        table = text.table(engine.session.state, columns=["id", "why"])
        engine.run()
        missing = engine.not_available
        assert [*missing] == [*keys, "cuda_graph"]
        assert all(name in missing[key] for key in keys)
        assert ("n/a" in table) is ("why" in keys)
        report(engine, f"without {name}")
    if "why" not in keys:
        assert "blocks" in str(engine.reasons)


def test_a_version_with_all_attributes_lacks_nothing() -> None:
    with stepped(make_core()) as engine:
        engine.add("one", prompt(1))
        engine.run()
        assert engine.not_available == {"cuda_graph": "vLLM runs without --cudagraph-metrics"}


def test_without_a_required_attribute_nothing_is_wrapped_and_viewers_are_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = make_core()
    rename(monkeypatch, Scheduler, "_free_request")
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        attachment = follow(core.scheduler, PublisherSettings(bind=endpoint))
        assert attachment is not None
        assert "schedule" not in vars(core.scheduler)
        with Session(endpoint) as session:
            session.await_engine(SECONDS)
            assert session.state.info is not None
            assert "no _free_request" in session.state.info.not_available["requests"]
        attachment.close("the test ends")
    core.shutdown()
