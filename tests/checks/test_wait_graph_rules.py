"""Requests that wait for ever are found within a second of engine time, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine_stub.step_record import AdmissionBlocked, ScheduledSequenceGroup
from seqtop.wire.messages import WaitCause
from tests.support.scheduled_runs import ScheduledRun

WITHIN = 1.0
"""Seconds of engine time."""
LARGE: dict[str, Any] = {"num_gpu_blocks": 400, "block_size": 8, "enable_chunked_prefill": True}
SMALL: dict[str, Any] = {
    "num_gpu_blocks": 24,
    "block_size": 8,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 96,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "num_scheduler_steps": 1,
}
SWAP: dict[str, Any] = {**SMALL, "preemption_mode": "swap", "num_cpu_blocks": 80}


def preempt_nothing(run: ScheduledRun) -> None:
    """Decodes that lack a block wait until another request ends."""
    manager = run.manager

    def schedule(groups: list[Any]) -> Any:
        decodes = []
        for group in groups:
            seqs = [seq for seq in group.seqs if not seq.is_finished()]
            if not manager.have_slots(seqs):
                if manager.num_blocks_to_append(seqs) > manager.num_available:
                    continue
                manager.append_slots(seqs)
            decodes.append(ScheduledSequenceGroup(group, 1, len(seqs), is_prompt=False))
        if groups and not decodes:
            run.begin()
        return decodes, []

    vars(run.scheduler)["_schedule_decodes"] = schedule


def admit_nothing(cause: WaitCause, *, begins: Callable[[ScheduledRun], bool]) -> Any:
    def inject(run: ScheduledRun) -> None:
        original = run.scheduler._schedule_waiting

        def schedule(budget: int, *, may_admit: bool) -> Any:
            queue = run.scheduler.waiting
            if run.num_steps < 12 or not queue:
                return original(budget, may_admit=may_admit)
            if begins(run):
                run.begin()
            return [], AdmissionBlocked(queue.head.request_id, cause, 1)

        vars(run.scheduler)["_schedule_waiting"] = schedule

    return inject


def wait_for_an_ended_one(run: ScheduledRun) -> None:
    original, heads = run.scheduler._schedule_waiting, list[str]()

    def schedule(budget: int, *, may_admit: bool) -> Any:
        queue = run.scheduler.waiting
        if not heads and run.num_steps >= 8 and len(queue) > 1:
            heads.append(queue.head.request_id)
            run.engine.abort_request(heads[0])
        if heads and queue:
            run.begin()
            return [], AdmissionBlocked(heads[0], "no_blocks", 0)
        return original(budget, may_admit=may_admit)

    vars(run.scheduler)["_schedule_waiting"] = schedule


def forget_the_swapped(run: ScheduledRun) -> None:
    vars(run.scheduler)["swapped"] = type(run.scheduler.waiting)(run.scheduler._rank)
    vars(run.scheduler.swapped)["add"] = lambda group: run.begin()


def never_swap_in(run: ScheduledRun) -> None:
    def admit(group: Any, *_: Any, **__: Any) -> Any:
        if not run.scheduler.running:
            run.begin()
        return AdmissionBlocked(group.request_id, "no_blocks", 1)

    vars(run.scheduler)["_admit_swapped"] = admit


def skip_a_running_one(run: ScheduledRun) -> None:
    original = run.scheduler._running_by_stage

    def stages() -> Any:
        parts = original()
        if run.num_steps < 6:
            return parts
        skipped = "req-2"
        if any(group.request_id == skipped for part in parts for group in part):
            run.begin()
        return tuple([group for group in part if group.request_id != skipped] for part in parts)

    vars(run.scheduler)["_running_by_stage"] = stages


def _always(_: ScheduledRun) -> bool:
    return True


def _idle(run: ScheduledRun) -> bool:
    return not run.scheduler.running


BUGS: dict[str, tuple[str, Callable[[ScheduledRun], object], dict[str, Any]]] = {
    "decodes wait for each other's blocks": ("deadlock", preempt_nothing, SMALL),
    "admission stops while others run": (
        "wait-reason", admit_nothing("no_blocks", begins=_always), LARGE),
    "admission stops, and all others end": (
        "orphan", admit_nothing("no_blocks", begins=_idle), SMALL),
    "no slot is given back": ("orphan", admit_nothing("seq_limit", begins=_idle), SMALL),
    "the head of the queue has ended": ("orphan", wait_for_an_ended_one, SMALL),
    "swapped requests are forgotten": ("orphan", forget_the_swapped, SWAP),
    "swapped requests never fit": ("orphan", never_swap_in, SWAP),
    "a running request is skipped": ("orphan", skip_a_running_one, LARGE),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "inject", "settings"), BUGS.values(), ids=BUGS)
def test_waiting_for_ever_is_found_within_a_second(
    rule: str, inject: Callable[[ScheduledRun], object], settings: dict[str, Any]
) -> None:
    run = ScheduledRun(1, inject, max_steps=150, **settings).go()
    assert run.onset is not None, "the bug took no effect"
    found = [(time, finding) for time, finding in run.findings if finding.rule == rule]
    assert found, run.findings
    assert found[0][0] - run.onset <= WITHIN, found[0][1].message


@pytest.mark.parametrize(
    "seeds",
    [range(12), pytest.param(range(12, 1_000), marks=pytest.mark.release("many runs"))],
    ids=["few", "many"],
)
def test_nothing_is_found_in_correct_runs(seeds: range) -> None:
    for seed in seeds:
        run = ScheduledRun(seed).go()
        assert run.num_steps, seed
        assert [finding for _, finding in run.findings] == [], seed
