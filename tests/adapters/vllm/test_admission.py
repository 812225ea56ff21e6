"""The reason to wait of a request that vLLM finds no blocks for, by the methods of its versions."""

from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.vllm.admission import Admission
from seqtop.adapters.wrapping import Wrapping
from tests.support.fake_vllm import FCFSRequestQueue, Request, configuration


class Manager:
    """A `KVCacheManager` that has no blocks left."""

    def allocate_slots(self, request: Request) -> None:
        """Finds no blocks."""

    def get_computed_blocks(self, request: Request) -> tuple[list[int], int]:
        return [], 0


class BusyScheduler:
    """The part of a `schedule` that examines the first waiting request, after one that runs.

    Args:
        examine: The method of the scheduler that it then calls; empty if it has none.
    """

    def __init__(self, examine: str) -> None:
        self.vllm_config = configuration(max_num_seqs=4, budget=16)
        self.scheduler_config = self.vllm_config.scheduler_config
        self.kv_cache_manager = Manager()
        self.running = [Request("runs", [1, 2, 3], 4)]
        self.waiting = FCFSRequestQueue([Request("waits", [1, 2, 3], 4)])
        self.max_num_running_reqs, self.max_num_scheduled_tokens = 4, 16
        self._examine = examine
        if examine:
            setattr(self, examine, lambda *_: None)

    def schedule(self) -> SimpleNamespace:
        self.kv_cache_manager.allocate_slots(self.running[0])
        (request,) = self.waiting
        if self._examine:
            getattr(self, self._examine)(request)
        if not request.num_computed_tokens:
            self.kv_cache_manager.get_computed_blocks(request)
        self.kv_cache_manager.allocate_slots(request)
        return SimpleNamespace(total_num_scheduled_tokens=1)


def reasons(scheduler: Any) -> list[tuple[str, str]]:
    errors: list[Exception] = []
    admission = Admission(scheduler, Wrapping(errors.append).wrap)
    found = [admission.take_reasons(scheduler.schedule(), has_preempted=False) for _ in range(2)]
    assert found[0] == found[1]
    assert not errors
    return found[0]


@pytest.mark.parametrize(
    "examine",
    [
        "_handle_blocked_waiting_request",  # of 0.33
        "_select_waiting_queue_for_scheduling",  # of 0.30, as the next one
        "_try_promote_blocked_waiting_request",
    ],
)
def test_no_blocks_for_a_request_that_has_loaded(examine: str) -> None:
    """It has computed tokens, so that vLLM does not look it up in the prefix cache."""
    scheduler = BusyScheduler(examine)
    scheduler.waiting[0].num_computed_tokens = 2
    assert reasons(scheduler) == [("waits", "no_blocks")]


@pytest.mark.parametrize(("num_computed", "cause"), [(0, "no_blocks"), (2, "unknown")])
def test_a_version_without_such_a_method(num_computed: int, cause: str) -> None:
    scheduler = BusyScheduler("")
    scheduler.waiting[0].num_computed_tokens = num_computed
    assert reasons(scheduler) == [("waits", cause)]
