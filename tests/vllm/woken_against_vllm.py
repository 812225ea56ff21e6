"""A dormant engine that is woken at random moments of real work is shown right from then on.

Run by `make test-vllm`. What was before the waking is unknown: preemptions, prefix hits, and who
was in the batches that had been scheduled before it, of which the times are unknown, too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import kv_connector
import pytest
import vllm
from stepped_against_vllm import full, sampling, version, window
from stepping import SchedulerSpy, SteppedEngine, make_core

from seqtop.adapters.vllm.hook import follow
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.waiting import SECONDS
from tests.support.watch import watched

NUM_WAKINGS = int(os.environ.get("NUM_WAKINGS", "3"))
_LOADING = "WAITING_FOR_REMOTE_KVS"
_LIMITS_IN_SECONDS = {"blocks-after-end", "wait-limit"}
"""Rules with limits that a busy machine exceeds."""
NUM_STEPS = 15
"""Steps that are compared after each waking."""


class Dormant(SteppedEngine):
    """An EngineCore under load, which a viewer sees only at times."""

    def __init__(self, core: Any, rng: random.Random, more: Callable[[int], Any]) -> None:
        self.spy = SchedulerSpy(core.scheduler)
        super().__init__(core, None, None, self.spy)  # type: ignore[arg-type]
        self.is_watched = False
        self.num_pre = 0
        """The steps that had been scheduled before the last waking."""
        self.num_found = 0
        self._rng, self._more, self._num_added = rng, more, 0
        self._reported: set[str] = set()
        """Requests that the worker has reported as loaded or sent."""
        self._cached: dict[str, Any] = {}
        self._preemptions: dict[str, int] = {}
        self._unknown_loads: set[str] = set()
        """Requests that had been preempted before the waking, and load: vLLM keeps no number of the
        tokens that these load."""
        self._prefix = [0, 0]

    def work(self) -> None:
        """Adds, aborts and steps, as clients and workers do."""
        while len(self.scheduler.requests) < 14 and self._rng.random() < 0.7:
            number, rng = self._num_added, self._rng
            self._num_added += 1
            prompt = [300 + position for position in range(16 * rng.randrange(4))]
            prompt += [900 + number % 500] * rng.randrange(5, 60)
            stops = [300 + rng.randrange(1_500) for _ in range(100)]  # each step ends some
            params = sampling(
                max_tokens=rng.randrange(3, 60), stop_token_ids=stops if number % 2 else None
            )
            self.add(f"req-{number}", prompt, params=params, **self._more(number))
        for request in list(self.scheduler.requests.values()):
            request_id, is_loading = request.request_id, request.status.name == _LOADING
            if request_id in self._reported:
                if not is_loading and not request.is_finished():
                    self._reported.remove(request_id)  # it may load again
            elif is_loading and self._rng.random() < 0.3:
                self._reported.add(request_id)
                kv_connector.LOADED.add(request_id)
            elif request.is_finished() and self._rng.random() < 0.2:
                self._reported.add(request_id)
                kv_connector.SENT.add(request_id)
            elif not request.is_finished() and self._rng.random() < 0.01:
                self.core.abort_requests([request_id])
        self.step()

    def compare(self) -> None:
        if not self.is_watched:
            return
        super().compare()
        stats = self.session.state.stats
        assert stats is not None
        times = stats.scheduler_time, stats.model_execute_time
        is_pre = self.spy.num_updates <= self.num_pre
        if is_pre is not (None in times) or (not is_pre and 0.0 in times):
            self.differ(f"step {self.spy.num_updates} after the waking has the times {times}")

    def excuse(self, shown: dict[str, Any], truth: dict[str, Any]) -> None:
        super().excuse(shown, truth)
        for name, request in truth["requests"].items():
            if name not in shown["requests"]:
                continue
            row = shown["requests"][name]
            if row["tables"] == [[]]:  # ended before it got a block
                row["tables"] = request["tables"]
            if self._cached.get(f"{name}-00000000") is self.spy.cached.get(f"{name}-00000000"):
                row["cached"] = request["cached"]
            elif name in self._unknown_loads and row["cached"] and request["cached"]:
                row["cached"] = row["cached"][0], request["cached"][1]
            row["preemptions"] += self._preemptions.get(name, 0)
        if self.spy.num_updates <= self.num_pre:
            for part in ("batch", "tokens"):
                shown[part] = truth[part]
        shown["prefix"] = [
            known + before for known, before in zip(shown["prefix"], self._prefix, strict=True)
        ]

    def wake(self) -> None:
        """Shows the next steps to a viewer."""
        spy, requests = self.spy, self.scheduler.requests.values()
        spy.num_schedules -= spy.num_updates
        spy.num_updates = 0
        spy.ended.clear()
        self.num_pre = len(self.core.batch_queue or ())
        self._cached, self._prefix = dict(spy.cached), list(spy.prefix)
        self._preemptions = {
            request.request_id[:-9]: request.num_preemptions for request in requests
        }
        self._unknown_loads = {
            request.request_id[:-9]
            for request in requests
            if request.num_preemptions and request.status.name != "RUNNING"
        }
        with TemporaryDirectory(prefix="sq") as directory:
            endpoint = f"ipc://{directory}/e"
            attachment = follow(self.scheduler, PublisherSettings(bind=endpoint, tokenizer=""))
            assert attachment is not None
            with watched(endpoint) as (self.session, self.watch):
                # One that has joined before the publisher had the requests joins again with them,
                # and would have none of the messages before that.
                names = {spy.name(request.request_id) for request in requests}
                assert self.session.wait_until(
                    lambda: names <= self.session.state.requests.keys(), SECONDS
                )
                self.is_watched = True
                while spy.num_updates < NUM_STEPS:
                    self.work()
                assert attachment.is_attached
                attachment.close("the test sleeps")
                self.is_watched = False
                self.end()
                found = [one for one in self.watch.findings if one.rule not in _LIMITS_IN_SECONDS]
                self.num_found += len(found)
                if found:
                    print(found[:3])


def connector(name: str) -> Any:
    from vllm.config import KVTransferConfig

    kv_connector.forget()
    return KVTransferConfig(
        kv_connector=name, kv_connector_module_path="kv_connector", kv_role="kv_both"
    )


def drafts(is_async: bool) -> dict[str, Any]:
    def change(config: Any) -> None:  # without a model: the executor makes the drafts up
        config.speculative_config.method = "eagle"

    method = "ngram_gpu" if is_async and version() >= (0, 20) else "ngram"
    numbers = {"num_speculative_tokens": 2, "prompt_lookup_max": 2}
    return {"speculative_config": {"method": method, **numbers}, "change": change}


def two_stages(config: Any) -> None:
    config.parallel_config.pipeline_parallel_size = 2


def lora(number: int) -> dict[str, Any]:
    from vllm.lora.request import LoRARequest

    name = f"lora{number % 3}"
    return {"lora_request": LoRARequest(name, 1 + number % 3, "/nowhere")} if number % 4 else {}


MODES: dict[str, Callable[[bool], dict[str, Any]]] = {
    "plain": lambda _: {},
    "drafts": drafts,
    "two stages": lambda _: {"change": two_stages},
    "connector": lambda _: {"kv_transfer_config": connector("LoadingConnector")},
    "sender": lambda _: {"kv_transfer_config": connector("SendingConnector")},
    "hybrid": lambda _: {
        "kv_cache_specs": {"a": window(), "b": full()},
        "num_gpu_blocks_override": 60,
    },
    "lora": lambda _: {"enable_lora": True, "max_loras": 1},
}


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_from_the_waking_on_it_is_shown_right(mode: str, is_async: bool) -> None:
    rng = random.Random(f"{mode} {is_async}")
    limits = {"num_gpu_blocks_override": 36} | MODES[mode](is_async)
    core = make_core(async_scheduling=is_async, **limits)
    engine = Dormant(core, rng, lora if mode == "lora" else lambda _: {})
    # Older versions keep requests that they have passed over apart, before one that was preempted.
    has_passed_over = mode in ("connector", "lora")
    engine.is_queue_known = not has_passed_over or hasattr(core.scheduler, "kv_holding_waiting")
    num_in_flight, num_held = set(), 0
    for _ in range(NUM_WAKINGS):
        for _ in range(rng.randrange(5, 40)):
            engine.work()
        num_in_flight.add(len(core.batch_queue or ()))
        num_held += any(request.is_finished() for request in core.scheduler.requests.values())
        engine.wake()
    engine.spy.close()
    core.shutdown()
    way = "async" if is_async else "sync"
    print(
        f"\nvLLM {vllm.__version__}, woken {NUM_WAKINGS} times, {mode}, {way}:"
        f" {engine.num_compared} steps, 0 differences, {engine.num_found} findings;"
        f" steps in flight at a waking {sorted(num_in_flight)},"
        f" wakings with ended requests that hold blocks {num_held}"
    )
    assert engine.num_found == 0
    assert (core.batch_queue is not None) is (max(num_in_flight) > 0)
    assert ("send" in mode or "connector" in mode) is (num_held > 0)
