"""Random workloads with all that the bundled engine can do, and nothing is found wrong."""

import os
from collections import Counter
from pathlib import Path

import pytest

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, Step
from tests.support.random_runs import RandomRun, small_models


class Watched:
    """Checks what is published, message by message in the form of the wire."""

    def __init__(self, seen: Counter[str]) -> None:
        self.seen = seen
        self.findings: list[Finding] = []
        self.checker = Checker()

    def publish(self, event: Event) -> None:
        self.findings += self.checker.apply(parsing.event(codec.encode(event)))
        if isinstance(event, Step):
            self.seen.update(preemption.mode for preemption in event.preemptions)
            self.seen["forks"] += sum(
                update.parent_seq_id is not None for update in event.sequences
            )
            self.seen["drafted"] += sum(update.num_draft_tokens or 0 for update in event.sequences)
            self.seen["accepted"] += sum(
                update.num_accepted_tokens or 0 for update in event.sequences
            )
            self.seen["several steps"] += event.execute.num_steps > 1
            self.seen["hits"] += event.stats.prefix_cache_hits

    def assert_same_ends(self, run: RandomRun) -> None:
        state = self.checker.state
        for group in run.groups:
            request = state.requests[group.request_id]
            assert request.metrics == group.metrics
            assert request.seq_ids == [seq.seq_id for seq in group.seqs]
            for seq in group.seqs:
                shown = state.sequences[seq.seq_id]
                assert tuple(shown.output_token_ids) == seq.get_output_token_ids()
                assert shown.text == seq.output_text
                assert shown.status is seq.status


NUM_RUNS = int(os.environ.get("NUM_RUNS", "200"))


@pytest.mark.parametrize(
    "num", [15, pytest.param(NUM_RUNS, marks=pytest.mark.release("more seeds"))]
)
def test_nothing_is_found(tmp_path: Path, num: int) -> None:
    models = small_models(tmp_path)
    seen: Counter[str] = Counter()
    for seed in range(num):
        run, watched = RandomRun(seed, models), Watched(seen)
        watched.publish(run.info())
        for _ in run.steps(watched):
            pass
        watched.findings += watched.checker.end()
        assert watched.findings == [], f"seed {seed}"
        watched.assert_same_ends(run)
        seen["aborts"] += run.num_aborts
        seen["pooled"] += sum(group.pooling_params is not None for group in run.groups)
        seen["beams"] += sum(len(group.seqs) > 1 for group in run.groups)
    wanted = (
        *("recompute", "swap", "forks", "drafted", "accepted", "several steps", "hits", "aborts"),
        *("pooled", "beams"),
    )
    assert all(seen[name] > 0 for name in wanted), seen
