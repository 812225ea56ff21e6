"""The release tests in a short form. `python -m tests.release NAME` runs one at full length."""

from pathlib import Path
from typing import get_args

import pytest

from seqtop.wire.messages import PreemptionMode
from tests.release import (
    attacks,
    bombs,
    fleet,
    healing,
    injected_bugs,
    kubernetes_pods,
    large_states,
    mutated_recordings,
    open_viewers,
    ray_cluster,
    scheduler_mutants,
    soak,
    stress,
    whatif,
)
from tests.support.fault_proxy import Faults

pytestmark = pytest.mark.release("takes minutes, and measures")


def test_the_engine_continues_under_every_attack() -> None:
    outcomes = dict(attacks.measure_all(rounds=1, seconds=0.2))
    assert outcomes.keys() == {
        *attacks.WITHOUT_CONTROL,
        *attacks.WITH_CONTROL,
        *attacks.WITH_KEYS,
    }
    assert all(outcome.cpu > 0 for outcome in outcomes.values())
    idle = {name for name, outcome in outcomes.items() if outcome.strikes == 0}
    assert idle <= {"a viewer", "viewers that do not read"}, "no message of these came through"


@pytest.mark.parametrize("name", ["500,000 empty candidates", "KV: 1,000,000 unknown removals"])
def test_a_bomb_ends_no_program(tmp_path: Path, name: str) -> None:
    name, num_bytes, *megabytes = bombs.measure(name, tmp_path)
    assert int(num_bytes.replace(",", "")) > 1_000_000
    assert all(cell.replace(",", "").isdecimal() for cell in megabytes if cell), megabytes


def test_engines_in_pods_are_found_lost_and_found_again() -> None:
    pytest.importorskip("kr8s", reason="needs the extra kubernetes")
    assert len(kubernetes_pods.measure(0.1)) == 6


def test_engines_in_a_ray_cluster_are_found_lost_and_found_again() -> None:
    pytest.importorskip("ray.util.state", reason="needs the extra ray")
    assert len(ray_cluster.measure()) == 6


def test_commands_end_on_mutated_recordings() -> None:
    outcome = mutated_recordings.measure(100, seed=1)
    assert outcome.problems == []
    assert outcome.num_runs == 100 * mutated_recordings.NUM_COMMANDS


def test_viewers_join_an_engine_with_a_large_state() -> None:
    assert large_states.measure(20_000).num_requests == 20_000
    assert large_states.measure(1, 10_000_000).longest_prompt == 10_000_000


def test_every_kind_of_fault_is_recovered_from() -> None:
    kinds = healing.measure(12)
    assert {*Faults.KINDS, "all"} <= kinds.keys()
    assert len(kinds["all"][0]) == 12


def test_viewers_come_and_go_while_others_are_killed() -> None:
    outcome = soak.run(20.0, 2_100.0)
    assert outcome.num_deltas > 0
    assert outcome.num_visits > 0
    assert all(outcome.samples.values())


def test_viewers_that_stay_open_keep_their_limits() -> None:
    outcome = open_viewers.run(2_000, 100.0)
    assert outcome.exit_status == 0
    assert {*outcome.usage} == {"app", "attach --kv-events", "engine", "show --follow", "record"}
    assert all(usage.most_bytes < 400e6 for usage in outcome.usage.values())


@pytest.mark.parametrize("mode", get_args(PreemptionMode))
def test_thousands_of_requests_go_through_a_pool_too_small_for_them(
    tmp_path: Path, mode: PreemptionMode
) -> None:
    stress.make_model(tmp_path)
    assert stress.stress(tmp_path, 5_000, mode)["requests"] == 5_000


LOSE_MUCH = {
    "admission stops, and the budget is given as the reason",
    "a preempted request is the last",
}
"""Bugs whose loads lose more than a quarter of all tokens to preemptions without the bug, too."""


@pytest.mark.parametrize("is_injected", [True, False])
def test_injected_bugs_are_found(tmp_path: Path, is_injected: bool) -> None:
    model = injected_bugs.tiny_model(tmp_path)
    for bug in injected_bugs.BUGS if is_injected else injected_bugs.BUGS_BY_LOAD.values():
        run = injected_bugs.run_bug(model, bug, is_injected=is_injected)
        rules = {finding.rule for finding in run.findings}
        wanted = {bug.rule} - {injected_bugs.MISSED} if is_injected else set()
        if wanted:
            assert wanted <= rules, (bug.name, rules)
        else:
            loses_much = not is_injected and bug.name in LOSE_MUCH
            assert rules == ({"recomputes"} if loses_much else set()), bug.name
        if not wanted:
            assert run.error is None, bug.name


def test_random_runs_are_repeated_and_predictions_equal_real_runs(tmp_path: Path) -> None:
    counts = whatif.repeat_random(200, tmp_path)
    assert counts["different runs"] == 0
    assert counts["equal steps"] == counts["steps"] > 5_000
    pairs = [*whatif.predict_pairs(tmp_path, ("greedy", "seeded", "fixed"))]
    assert all(pair.is_equal for pair in pairs)
    assert sum(pair.has_effect for pair in pairs) > len(pairs) / 2


def test_the_sick_one_of_many_engines_is_found_by_summaries() -> None:
    outcome = fleet.run(12, 1)
    assert outcome.seconds <= fleet.MOST_SECONDS
    assert 0 < outcome.bytes_per_second <= 300


def test_many_requests_are_predicted_with_eight_settings(tmp_path: Path) -> None:
    assert whatif.measure_large(tmp_path, 1_000)["largest process, MiB"] > 0


def test_faults_of_the_scheduler_are_found_by_recordings(tmp_path: Path) -> None:
    (_, unchanged), *found = scheduler_mutants.measure(scheduler_mutants.MUTANTS, tmp_path)
    assert unchanged.status == 0
    assert {mutant.name: own.status for mutant, own in found if mutant} == {
        mutant.name: 1 for mutant in scheduler_mutants.MUTANTS
    }


def test_recordings_of_random_runs_raise_no_false_alarm(tmp_path: Path) -> None:
    counts = scheduler_mutants.try_random_runs(40, tmp_path)
    assert counts["equal"] == counts["recordings"] == 40
    assert counts["equal steps"] == counts["steps"] > 1_000
