"""The misses that are predicted for larger pools, beside those of real runs with these pools."""

from pathlib import Path

import pytest

from seqtop.cli.main import main
from seqtop.history import FileStore, FileWriter
from seqtop.misses.cache_misses import read_misses
from seqtop.misses.report import as_text
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.text import format as fmt
from seqtop.wire import parsing
from tests.support.cache_runs import WORKLOADS, misses_of, run

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
