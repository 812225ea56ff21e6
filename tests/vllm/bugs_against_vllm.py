"""Bugs of schedulers that were reported in 2025 and 2026, in vLLM's real scheduler.

Each test makes the scheduler behave as in the report, by a patch, and expects that `seqtop check`
finds it by the rule that names it, and by no other. The same work without the patch has to end
without a finding. Run by `make test-vllm`, as `against_vllm.py`.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import kv_connector
import pytest
import vllm
from stepped_against_vllm import prompt, version
from stepping import make_core, stepped
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler

from seqtop.checks import wait_graph_rules

pytestmark = pytest.mark.skipif(
    version() < (0, 33),
    reason="the patches are for the scheduler of vLLM 0.33",
)


@pytest.fixture(params=[True, False], ids=["as reported", "as released"])
def is_patched(request: pytest.FixtureRequest) -> bool:
    """True if the scheduler has the bug."""
    return bool(request.param)


@pytest.fixture(autouse=True)
def steps_alone_prove_an_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for `THRESHOLDS`, nothing is left to the speed of the machine."""
    monkeypatch.setattr(wait_graph_rules, "_SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(wait_graph_rules, "_PROVEN_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def clean_connector() -> None:
    kv_connector.LOADED.clear()
    kv_connector.SENT.clear()


def loading_core(**more: Any) -> Any:
    from vllm.config import KVTransferConfig

    config = KVTransferConfig(
        kv_connector="LoadingConnector",
        kv_connector_module_path="kv_connector",
        kv_role="kv_both",
    )
    return make_core(kv_transfer_config=config, **more)


def loading(engine: Any) -> list[str]:
    """Internal ids of the requests that the connector loads."""
    return [
        request.request_id
        for request in engine.scheduler.requests.values()
        if request.status.name == "WAITING_FOR_REMOTE_KVS"
    ]


def report(engine: Any, title: str) -> None:
    print(f"\nvLLM {vllm.__version__}, {title}: {engine.num_compared} steps")
    for rule in dict.fromkeys(finding.rule for finding in engine.watch.findings):
        found = [finding for finding in engine.watch.findings if finding.rule == rule]
        print(f"  {len(found)} of {rule}: step {found[0].step}, {found[0].message}")


def test_admission_stops_while_the_cache_is_free(is_patched: bool) -> None:
    """vllm#53130: as many requests are counted as active as may be, and none of them exists."""
    rules = {"no-progress", "wait-reason", "orphan"} if is_patched else set()
    with stepped(make_core(), rules) as engine:
        for number in range(20):
            engine.add(f"req-{number}", prompt(number))
        engine.step()
        if is_patched:
            engine.scheduler.num_waiting_for_streaming_input = engine.scheduler.max_num_active_reqs
        for _ in range(150):
            engine.step()
        report(engine, "admission stops")


def test_loads_hold_the_blocks_that_the_head_needs(
    is_patched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vllm#45388: nothing runs, since the ends of loads are not seen."""
    if is_patched:
        monkeypatch.setattr(Scheduler, "_update_from_kv_xfer_finished", lambda *_: None)
    with stepped(
        loading_core(num_gpu_blocks_override=20),
        # The loads are progress until they have lasted too long, in seconds.
        {"wait-reason"} if is_patched else (),
    ) as engine:
        for number in range(9):
            engine.add(f"req-{number}", [400 + number] * 60)
        engine.add("head", [500] * 20)
        loaded: set[str] = set()
        for _ in range(150):
            kv_connector.LOADED.update(set(loading(engine)) - loaded)
            loaded |= kv_connector.LOADED
            kv_connector.SENT.update(
                request.request_id
                for request in engine.scheduler.requests.values()
                if request.is_finished()
            )
            engine.step()
        report(engine, "loads hold all blocks")


def test_prompt_larger_than_the_pool(is_patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#39734: it is admitted to the queue, and blocks it for ever."""
    monkeypatch.setattr(
        "vllm.v1.core.kv_cache_planning._check_enough_kv_cache_memory", lambda *_: None
    )
    core = make_core(num_gpu_blocks_override=8)
    with stepped(core, {"never-fits", "orphan"} if is_patched else ()) as engine:
        engine.add("plain", prompt(1))
        # With its 20 tokens of output, one of 100 would outgrow the pool of 7 blocks: it preempts
        # itself, and is never admitted again. vLLM's check, which is patched away, prevents that.
        engine.add("large", [400] * (130 if is_patched else 80))
        for _ in range(60):
            engine.step()
        report(engine, "a prompt larger than the pool")


def test_thrash(is_patched: bool) -> None:
    """vllm#25538 and vllm#21793: admitted for a first chunk, and preempted before its second."""
    # With the prefix cache, it would find its first chunk again.
    core = make_core(num_gpu_blocks_override=20, enable_prefix_caching=False)
    with stepped(core, {"thrash"} if is_patched else ()) as engine:
        core.scheduler.scheduler_reserve_full_isl = not is_patched
        for number in range(3):
            engine.add(f"req-{number}", [400 + number] * 32, max_tokens=48)
        for _ in range(20):
            engine.step()
        engine.add("long", [500] * 128)
        engine.run()
        report(engine, "thrash")


def test_preempted_request_is_overtaken(is_patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#41951: after a preemption, it is the last in the queue."""
    original = Scheduler._preempt_request

    def preempt(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        original(self, request, *args, **kwargs)
        self.waiting.remove_request(request)
        self.waiting.add_request(request)

    if is_patched:
        monkeypatch.setattr(Scheduler, "_preempt_request", preempt)
    core = make_core(num_gpu_blocks_override=20)
    with stepped(core, {"overtaken", "orphan"} if is_patched else ()) as engine:
        engine.is_queue_known = not is_patched
        for number in range(40):
            engine.add(f"req-{number}", [400 + number] * 30, max_tokens=40)
        engine.run()
        report(engine, "a preempted request at the end of the queue")


def test_aborted_load_is_never_freed(is_patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#46283."""
    if is_patched:
        monkeypatch.setattr(
            Scheduler, "_free_blocks", lambda self, request: self.requests.pop(request.request_id)
        )
    with stepped(loading_core(), {"block-leak"} if is_patched else ()) as engine:
        for number in range(3):
            engine.add(f"req-{number}", [400 + number] * 60)
        engine.step()
        (first, *_) = loading(engine)
        engine.abort("req-0")
        engine.add("plain", prompt(9, 20))
        engine.step()
        kv_connector.LOADED.add(first)
        for _ in range(5):
            engine.step()
        report(engine, "an aborted load")


def test_allocator_leaks(is_patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """sglang#11970 and sglang#6888: one block of a request that has ended is not freed."""
    original = KVCacheManager.free

    def free(self: Any, request: Any) -> None:
        first = self.get_block_ids(request.request_id)[0][0]
        self.block_pool.touch([self.block_pool.blocks[first]])
        original(self, request)

    if is_patched:
        monkeypatch.setattr(KVCacheManager, "free", free)
    with stepped(make_core(), {"block-leak"} if is_patched else ()) as engine:
        for number in range(6):
            engine.add(f"req-{number}", [400 + number] * 40)
        engine.run()
        report(engine, "a leak")


def test_blocks_are_freed_twice(is_patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """sglang#28702 and sglang#17797: a shared block is freed while another request holds it."""
    original = KVCacheManager.free

    def free(self: Any, request: Any) -> None:
        first = self.block_pool.blocks[self.get_block_ids(request.request_id)[0][0]]
        original(self, request)
        if first.ref_cnt == 1:
            self.block_pool.free_blocks([first])

    if is_patched:
        monkeypatch.setattr(KVCacheManager, "free", free)
    with stepped(make_core(), {"block-leak"} if is_patched else ()) as engine:
        engine.add("short", [400] * 40, max_tokens=5)
        engine.add("long", [400] * 40, max_tokens=20)
        for _ in range(10):
            engine.step()
        report(engine, "freed twice")


def test_hit_on_what_is_not_computed(is_patched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm#37152: the blocks of a prompt are in the prefix cache before they are computed."""
    original = KVCacheManager.allocate_slots

    @functools.wraps(original)  # the spy reads the arguments by their names
    def allocate(self: Any, request: Any, num_new_tokens: int, *args: Any, **more: Any) -> Any:
        left = request.num_tokens - request.num_computed_tokens - num_new_tokens
        blocks = original(
            self, request, num_new_tokens, *args, **{**more, "num_lookahead_tokens": max(0, left)}
        )
        self.coordinator.cache_blocks(request, request.num_tokens)
        return blocks

    if is_patched:
        monkeypatch.setattr(KVCacheManager, "allocate_slots", allocate)
    core = make_core(long_prefill_token_threshold=32)
    with stepped(core, {"hit-before-computed"} if is_patched else ()) as engine:
        engine.add("first", [400] * 200)
        engine.add("other", [500] * 40)
        engine.step()
        engine.add("second", [400] * 200)
        engine.run()
        report(engine, "a hit before it is computed")


def test_negative_queue_time(is_patched: bool) -> None:
    """sglang#39312: the clock of the front end is ahead of the scheduler's."""
    with stepped(make_core(), {"time-order"} if is_patched else ()) as engine:
        arrival_time = time.time() + (100.0 if is_patched else 0.0)
        engine.add("req", prompt(1), arrival_time=arrival_time)
        engine.run()
        report(engine, "a clock that is ahead")
