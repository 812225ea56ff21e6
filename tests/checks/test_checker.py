"""The checker on a correct run, from its middle, and with hostile figures."""

import pytest

from seqtop.checks.checker import Checker
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo, Heartbeat
from tests.support.mutants import PayloadCollector, check, events, steps_of
from tests.support.random_runs import RandomRun

SEEDS_WITH_SWAPS = (19, 33)
NUM_FOLLOWING = 40
"""Messages that are checked from each position on."""


def test_correct_run_has_no_findings_and_has_it_all(payloads: list[bytes]) -> None:
    run = events(payloads)
    assert check(run) == []
    steps = steps_of(run)
    assert any(step.preemptions for step in steps)
    assert steps[-1].stats.prefix_cache_hits > 0
    state = EngineState()
    for event in run:
        state.apply(event)
    assert any(request.finish_reason == "abort" for request in state.requests.values())
    assert any(
        span.kind == "prefill" and request.spans[index + 1].kind == "prefill"
        for request in state.requests.values()
        for index, span in enumerate(request.spans[:-1])
    )


@pytest.mark.parametrize("seed", SEEDS_WITH_SWAPS)
def test_checking_can_begin_anywhere(seed: int) -> None:
    run, collected = RandomRun(seed), PayloadCollector()
    collected.publish(run.info())
    for _ in run.steps(collected):
        pass
    assert any(step.execute.blocks_to_swap_in for step in steps_of(events(collected.payloads)))
    state = EngineState()
    for position, event in enumerate(events(collected.payloads), start=1):
        state.apply(event)
        checker = Checker(codec.decode(codec.encode(state), EngineState))
        following = events(collected.payloads[position : position + NUM_FOLLOWING])
        found = [finding for event in following for finding in checker.apply(event)]
        assert found == [], position


def test_hostile_figures_are_findings_not_errors() -> None:
    info = EngineInfo(
        engine_id="", incarnation="", engine="", model="", dtype="", device="",
        start_time=float("nan"), block_size=0, num_gpu_blocks=-5, num_cpu_blocks=None,
        max_num_seqs=-1, max_num_batched_tokens=-1, max_model_len=0, enable_chunked_prefill=True,
        enable_prefix_caching=True, preemption_mode="recompute",
    )  # fmt: skip
    checker = Checker()
    assert [finding.rule for finding in checker.apply(info)] == ["not-finite"]
    heartbeat = Heartbeat(time=float("-inf"), step=-(2**63))
    assert [finding.rule for finding in checker.apply(heartbeat)] == ["not-finite"]
