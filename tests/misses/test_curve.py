"""The misses that are predicted for larger pools, beside those of real runs with these pools."""

import random
from pathlib import Path

import pytest

from seqtop.cli.main import main
from seqtop.history import FileStore, FileWriter
from seqtop.history.step_time import StepTime
from seqtop.misses.cache_misses import CacheMisses, read_misses
from seqtop.misses.pool_replay import GROWTH
from seqtop.misses.report import as_text
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.text import format as fmt
from seqtop.wire import parsing
from tests.support.cache_runs import WORKLOADS, CacheRequest, documents, misses_of, run

MAX_ERROR = 0.05
"""The largest error, as a part of the recorded misses; `docs/prefix-cache.md` has a table."""
QUICK = ("documents", "documents, preemptions", "chats", "documents in turn")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.release)
        for name in WORKLOADS
    ],
)
def test_real_runs_with_more_blocks_have_the_predicted_misses(name: str) -> None:
    requests, settings = WORKLOADS[name].requests(), WORKLOADS[name].settings
    misses = misses_of(run(requests, **settings))
    totals = misses.totals()
    points = {point.percent: point for point in misses.curve(totals)}
    assert points[0].num_missed_blocks == totals.num_missed_first > 0
    # With the recorded size, the repeated pool finds what the engine found.
    assert totals.num_differing <= totals.num_blocks * 0.005
    for percent in (10, 20, 50):
        predicted = points[percent]
        num_blocks = predicted.num_gpu_blocks
        real = misses_of(run(requests, **(settings | {"num_gpu_blocks": num_blocks}))).totals()
        removed = totals.num_missed_first - predicted.num_missed_blocks
        share = fmt.percent(removed, totals.num_missed_first)
        assert f" {predicted.num_missed_blocks:,}  {share:>7}\n" in as_text(misses, with_text=False)
        error = abs(predicted.num_missed_blocks - real.num_missed_first)
        assert error <= MAX_ERROR * totals.num_missed_first, percent


@pytest.mark.parametrize(
    ("seed", "num_blocks"),
    [
        (2, 70),
        *(pytest.param(n, 100, marks=pytest.mark.release("many seeds")) for n in range(8)),
    ],
)
def test_every_admission_is_exact_where_hits_do_not_change_the_schedule(
    seed: int, num_blocks: int
) -> None:
    """All steps take as long, one request arrives at a time, and none waits for blocks."""
    requests = []
    for number, (_, prompt, output) in enumerate(documents(random.Random(seed), count=50)):
        assert isinstance(prompt, list)
        # A full last block is computed again, and the last step publishes no block that it took.
        prompt += [3] * (len(prompt) % 16 == 0)
        output += [3] * ((len(prompt) + len(output) - 2) % 16 == 0)
        requests.append(CacheRequest(number * 0.02, prompt, output))

    def misses_with(blocks: int) -> CacheMisses:
        settings = {"num_gpu_blocks": blocks, "max_num_batched_tokens": 4096}
        steps = StepTime(per_step=2e-3, per_prefill_token=0.0, per_decode_token=0.0)
        return misses_of(run(requests, step_time=steps, **settings))

    misses = misses_with(num_blocks)
    totals = misses.totals()
    assert totals.num_lookups == len(requests)
    assert totals.num_differing == totals.num_unexplained == totals.num_again == 0
    points = misses.curve(totals)
    assert [point.percent for point in points] == [*GROWTH]
    for percent, blocks, num_missed in points[1:]:
        assert blocks == num_blocks + num_blocks * percent // 100
        real = misses_with(blocks)
        assert real.totals().num_missed == num_missed
        for lookup, other in zip(misses.lookups, real.lookups, strict=True):
            found = sum(needed.num_blocks for needed in lookup.needed if needed.percent <= percent)
            assert other.num_hit_tokens == lookup.num_hit_tokens + 16 * found, percent


@pytest.mark.release("the scheduler runs again for each number of blocks")
@pytest.mark.parametrize(
    ("name", "max_error"),
    [
        ("documents", 0.0),
        ("documents, requests wait for blocks", 0.025),
        ("documents, preemptions", MAX_ERROR),
        ("chats", 0.005),
    ],
)
def test_whatif_with_the_same_blocks_has_the_predicted_misses(
    name: str, max_error: float, tmp_path: Path
) -> None:
    path, state = tmp_path / "run.seqtop", EngineState()
    with FileWriter(path) as writer:
        payloads = run(WORKLOADS[name].requests(), **WORKLOADS[name].settings)
        for number, payload in enumerate(payloads):
            event = parsing.event(payload)
            writer.record(StateChange(state, state.apply(event), event, payload, number))
    misses = misses_of(payloads)
    totals = misses.totals()
    points = {point.percent: point for point in misses.curve(totals)}
    for percent in (10, 20, 50):
        predicted, output = points[percent], tmp_path / f"{percent}.seqtop"
        changes = ["--set", f"num_gpu_blocks={predicted.num_gpu_blocks}"]
        # Decisions are exact, also where most of the time would be in larger steps than recorded.
        assert main(["whatif", str(path), *changes, "--anyway", "-o", str(output)]) == 0
        with FileStore(output) as recording:
            again = read_misses(recording).totals()
        error = abs(predicted.num_missed_blocks - again.num_missed_first)
        assert error <= max_error * totals.num_missed_first, percent
