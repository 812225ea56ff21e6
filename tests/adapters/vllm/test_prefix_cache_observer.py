"""The causes of prefix misses that the adapter derives from a scheduler's cache."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seqtop.adapters.observations import AnyObservation
from seqtop.adapters.translate import Translator
from seqtop.adapters.vllm.engine_description import Layout, describe
from seqtop.adapters.vllm.prefix_cache_observer import why_not_observable
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.wrapping import Wrapping
from seqtop.state import EngineState
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import (
    AsyncScheduler,
    Request,
    RequestStatus,
    Scheduler,
    drain,
    step,
)

PROMPT = [*range(100, 112), 7]
"""Three full blocks, and a token."""
LAST = ("partial_block", 1, None, None)


class Followed:
    """A scheduler, and the state that its observations become, in one process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = EngineState()
        self.wants_all_requests = False
        self.errors: list[Exception] = []
        started, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))
        self._translator = Translator(started)
        self._decoder = msgspec.msgpack.Decoder(AnyObservation)
        self._wrapping = Wrapping(self.errors.append)
        SchedulerObserver(scheduler, self._wrapping.wrap, self, layout)

    def send(self, observation: AnyObservation) -> None:
        received = self._decoder.decode(msgspec.msgpack.encode(observation))
        for event in self._translator.events(received):
            self.state.apply(event)

    def run(self, name: str, prompt: list[int], num_tokens: int = 1, **more: Any) -> None:
        """Runs a request alone, from its arrival to its end."""
        request = Request(f"{name}-00000000", prompt, num_tokens)
        for attribute, value in more.items():
            setattr(request, attribute, value)
        self.scheduler.add_request(request)
        while self.scheduler.requests:
            step(self.scheduler)
        assert not self.errors

    def misses(self, name: str) -> list[tuple[object, ...]] | None:
        (seq_id,) = self.state.requests[name].seq_ids
        misses = self.state.sequences[seq_id].prefix_misses
        if misses is None:
            return None
        return [(miss.cause, miss.num_tokens, miss.step, miss.request_id) for miss in misses]


@pytest.fixture
def followed() -> Followed:
    return Followed(Scheduler(num_gpu_blocks=9, budget=32))


def test_new_tokens_hits_and_evictions(followed: Followed) -> None:
    followed.run("first", PROMPT)
    assert followed.misses("first") == [("new_tokens", 12, None, None), LAST]
    followed.run("again", PROMPT)
    assert followed.misses("again") == [LAST]
    followed.run("other", list(range(200, 230)))
    followed.run("late", PROMPT)
    assert followed.misses("late") == [("evicted", 12, 2, "other"), LAST]
    assert followed.state.num_missed_tokens["evicted"] == 12


def test_tokens_with_another_adapter(followed: Followed) -> None:
    followed.run("plain", PROMPT)
    poems = SimpleNamespace(lora_name="poems", lora_int_id=1)
    followed.run("poems", PROMPT, lora_request=poems)
    assert followed.misses("poems") == [("extra_keys", 12, None, "plain"), LAST]
    followed.run("more", PROMPT, lora_request=poems)
    assert followed.misses("more") == [LAST]


def test_output_is_known_as_well_as_prompts(followed: Followed) -> None:
    followed.run("first", PROMPT, 5)
    answered = [*PROMPT, 1000, 1001, 1002]
    assert list(followed.state.sequences[0].output_token_ids)[:3] == answered[13:]
    poems = SimpleNamespace(lora_name="poems", lora_int_id=1)
    followed.run("poems", [*answered, 9], lora_request=poems)
    assert followed.misses("poems") == [("extra_keys", 16, None, "first"), LAST]


def test_a_request_that_skips_the_cache(followed: Followed) -> None:
    followed.run("first", PROMPT)
    followed.run("logprobs", PROMPT[::-1], skip_reading_prefix_cache=True)
    assert followed.misses("logprobs") == [("not_cacheable", 13, None, None)]


def test_a_reset_of_the_cache(followed: Followed) -> None:
    followed.run("first", PROMPT)
    followed.scheduler.pool.reset_prefix_cache()
    followed.run("again", PROMPT)
    assert followed.misses("again") == [("evicted", 12, 1, None), LAST]


def test_a_request_in_flight_whose_id_another_one_has_now_is_not_named() -> None:
    scheduler = AsyncScheduler(num_gpu_blocks=9, budget=32)
    followed = Followed(scheduler)
    before = list(range(200, 230))
    followed.run("before", before)
    drain(scheduler)
    scheduler.add_request(Request("one-00000000", PROMPT, 20))
    step(scheduler)  # evicts three blocks
    scheduler.finish_requests("one-00000000", RequestStatus.FINISHED_ABORTED)
    scheduler.add_request(Request("one-00000000", list(range(300, 316)), 20))
    step(scheduler)  # evicts four
    (second,) = (name for name in followed.state.requests if name not in ("before", "one"))
    assert followed.misses("one") is None
    own = [("new_tokens", 12, None, None), ("partial_block", 4, None, None)]
    assert followed.misses(second) == own
    scheduler.finish_requests("one-00000000", RequestStatus.FINISHED_ABORTED)
    drain(scheduler)
    followed.run("late", before)
    assert followed.misses("late") == [
        ("evicted", 16, 2, second),
        ("evicted", 12, 2, None),
        ("partial_block", 2, None, None),
    ]
    drain(scheduler)
    followed.run("again", PROMPT)
    assert followed.misses("again") == [("not_stored", 12, 2, None), LAST]


def test_blocks_cached_before_the_adapter_came_are_unknown() -> None:
    scheduler = Scheduler(num_gpu_blocks=9, budget=32)
    scheduler.add_request(Request("before-00000000", PROMPT, 1))
    while scheduler.requests:
        step(scheduler)
    followed = Followed(scheduler)
    followed.run("hit", PROMPT)
    assert followed.misses("hit") == [LAST]
    followed.run("other", list(range(200, 230)))
    assert followed.misses("other") == [("unknown", 28, 0, None), ("partial_block", 2, None, None)]
    followed.run("late", PROMPT)
    assert followed.misses("late") == [("evicted", 12, 1, "other"), LAST]


def test_the_first_of_two_equal_blocks_is_no_loss(followed: Followed) -> None:
    for name in ("one", "two"):
        followed.scheduler.add_request(Request(f"{name}-00000000", PROMPT, 1))
    while followed.scheduler.requests:
        step(followed.scheduler)
    assert followed.misses("two") == [("not_stored", 12, 0, "one"), LAST]
    pool = followed.scheduler.pool
    first = pool.by_hash[Request("", PROMPT, 1).block_hashes[0]]
    other = next(
        block
        for block in pool.blocks
        if block.block_hash == first.block_hash and block is not first
    )
    pool.free_queue.remove(other)
    pool.free_queue.appendleft(other)
    pool.free_blocks(pool.get_new_blocks(1))
    assert other.block_hash is None
    followed.run("again", PROMPT)
    assert followed.misses("again") == [LAST]


def test_models_whose_hits_are_decided_otherwise_report_nothing() -> None:
    windowed = Scheduler(window=8)
    assert why_not_observable(Scheduler(), Layout()) is None
    reason = why_not_observable(windowed, Layout(whole_tables=True))
    assert reason == "the model has layers other than full attention"
    without_cache = Scheduler()
    without_cache.vllm_config.cache_config.enable_prefix_caching = False
    assert why_not_observable(without_cache, Layout()) is None, "there are no hits to explain"
