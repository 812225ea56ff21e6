"""Advice: the settings that meet the objectives best, found by the bundled scheduler."""

import json
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.history import FileStore
from seqtop.state.slo import Slo
from seqtop.text import format as fmt
from seqtop.whatif import advice_report
from seqtop.whatif.advise import (
    Advice,
    Settings,
    Trial,
    _Search,
    advise,
    rank,
    ranked,
    sentence,
    single_changes,
)
from seqtop.whatif.driver import DriverError, TimeUpError
from seqtop.whatif.figures import Distribution, RunFigures
from seqtop.whatif.predict import Basis, Question
from seqtop.whatif.replay import ReplayResult
from seqtop.whatif.settings import SettingError
from tests.support.events import engine_info
from tests.support.greedy_runs import record_run

TIMES = {"step": 0.01, "prefill": 1e-5, "decode": 1e-4}
SLO = {"ttft": 1.0, "tpot": 0.1}
BASIS = Basis(
    source="run",
    proof=None,
    num_requests=1,
    num_free_lengths=0,
    unfinished=[],
    recorded=RunFigures(),
)


def trial(goodput: float, ttft: float = 1.0, num_changes: int = 1, refused: int = 0) -> Trial:
    figures = RunFigures(
        num_requests=1000,
        num_within_slo=round(1000 * goodput),
        num_within={"ttft": round(1000 * goodput), "tpot": 1000},
        ttft=Distribution(p99=ttft),
        tpot=Distribution(p99=0.05),
    )
    settings: Settings = {f"s{number}": number for number in range(num_changes)}
    return Trial(settings=settings, figures=figures, num_refused=refused)


def test_goodput_comes_first_then_latency_and_few_changes() -> None:
    worse, better = trial(0.5), trial(0.9)
    slow, fast = trial(0.7, ttft=3.0), trial(0.7, ttft=2.0)
    order = [better, fast, slow, worse]
    assert sorted([worse, slow, better, fast], key=lambda own: rank(own, SLO)) == order
    assert rank(trial(0.9, refused=1), SLO) > rank(worse, SLO)
    many, few = trial(0.903, num_changes=3), trial(0.9, num_changes=1)
    assert ranked([many, few, worse], SLO) == [few, many, worse]
    assert ranked([trial(0.91, num_changes=3), few], SLO)[0].figures.num_within_slo == 910


def test_a_setting_with_which_requests_are_not_served_is_no_advice(tmp_path: Path) -> None:
    """Without chunked prefill, prompts longer than the budget of a step are ignored."""
    path = tmp_path / "run.seqtop"
    record_run(path)
    advice = advise(Question(source=str(path)), Slo(ttft=0.3, e2e=2.0))
    assert advice.recorded is not None
    assert advice.best is not None
    assert advice.recorded.num_refused == advice.best.num_refused == 0
    assert all(trial.num_refused == 0 for trial in advice.trials)


def test_each_setting_of_the_engine_is_tried_alone() -> None:
    info = engine_info()
    changes = single_changes(info)
    assert changes[0] == {} or {} in changes
    assert {"max_num_seqs": info.max_num_seqs * 2} in changes
    assert {"enable_prefix_caching": not info.enable_prefix_caching} in changes
    sizes = [own for own in changes if "block_size" in own]
    slots = info.num_gpu_blocks * info.block_size
    assert sizes
    for own in sizes:
        assert slots - 64 < int(own["block_size"]) * int(own["num_gpu_blocks"]) <= slots


def test_the_load_that_settings_hold_is_a_column() -> None:
    trials = [trial(goodput) for goodput in (0.9, 0.8, 0.7)]
    for own, load in zip(trials, (2.0, 0.0, None), strict=True):
        own.highest_load = load
    question = Question(source="run")
    advice = Advice(question=question, basis=BASIS, slo=SLO, trials=trials, requests_per_second=2.5)
    held = ("2.00x (5/s)", "none tried", fmt.NOT_AVAILABLE)
    lines = advice_report.trial_lines(advice)[-3:]
    assert [words in line for words, line in zip(held, lines, strict=True)] == [True] * 3
    advice.requests_per_second = None
    assert not [line for line in advice_report.trial_lines(advice) if "5/s" in line]


def test_settings_that_the_engine_refuses_are_named_unless_they_are_the_recorded_ones() -> None:
    replays: Any = SimpleNamespace(workload=SimpleNamespace(requests=range(9)))
    advice = Advice(question=Question(source="run"), basis=BASIS, slo=SLO)
    search = _Search(replays, advice)
    refused: Future[ReplayResult] = Future()
    refused.set_result(ReplayResult(error="it has too few blocks"))
    served: Future[ReplayResult] = Future()
    served.set_result(ReplayResult())
    trials = search._results([({"max_num_seqs": 1}, refused), ({}, served)])
    assert [own.settings for own in trials] == [{}]
    assert [*advice.refused.values()] == ["it has too few blocks"]
    with pytest.raises(DriverError, match="it has too few blocks"):
        search._results([({}, refused), ({"max_num_seqs": 1}, served)])


def test_blocks_of_another_size_are_tried_in_one_pool_only() -> None:
    info = engine_info(kv_cache_groups=["full", "window"])
    assert not [own for own in single_changes(info) if "block_size" in own]
    info = engine_info(kv_cache_groups=["full"], block_size=32, num_gpu_blocks=10)
    sizes = [own for own in single_changes(info) if "block_size" in own]
    assert sizes == [
        {"block_size": 8, "num_gpu_blocks": 40},
        {"block_size": 16, "num_gpu_blocks": 20},
        {"block_size": 64, "num_gpu_blocks": 5},
    ]


def test_the_binding_objective_is_the_one_that_fewest_requests_met() -> None:
    question = Question(source="run")
    advice = Advice(question=question, basis=BASIS, slo={"tpot": 0.1, "ttft": 1.0, "itl": 1.0})
    assert advice.binding == ""
    advice.trials = [trial(0.5)]
    assert advice.binding == "itl", "none is known to have met it"
    advice.slo = {"tpot": 0.1, "ttft": 1.0}
    assert advice.binding == "ttft"
    advice.slo = {}
    assert advice.binding == ""


@pytest.mark.parametrize(
    ("total", "parts"),
    [
        (40, [40, 40, 40]),
        (300, [100, 100, 300]),
        (600, [100, 200, 600]),
        (1_200, [150, 400, 1_200]),
        (6_000, [300, 2_000, 6_000]),
    ],
)
def test_settings_are_tried_on_growing_parts(total: int, parts: list[int]) -> None:
    replays: Any = SimpleNamespace(workload=SimpleNamespace(requests=range(total)))
    advice = Advice(question=Question(source="run"), basis=BASIS, slo={})
    assert _Search(replays, advice)._parts == parts


def test_numbers_between_the_best_ones_are_tried() -> None:
    workload = SimpleNamespace(
        requests=range(9), info=engine_info(max_num_seqs=8, max_num_batched_tokens=128)
    )
    replays: Any = SimpleNamespace(workload=workload)
    search = _Search(replays, Advice(question=Question(source="run"), basis=BASIS, slo={}))
    tokens = [{"max_num_batched_tokens": number} for number in (91, 181, 256)]
    assert search._between({}) == [*({"max_num_seqs": number} for number in (6, 11, 16)), *tokens]
    assert search._between({"max_num_seqs": 4}) == [
        *({"max_num_seqs": number} for number in (3, 6)),
        {},  # the recorded eight
        *({"max_num_seqs": 4, **own} for own in tokens),
    ]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Requests that come faster than two at a time can serve."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    row = {"input_length": 40, "output_length": 20}
    rows = [{"timestamp": 60 * number, **row} for number in range(30)]
    path.write_text("".join(json.dumps(own) + "\n" for own in rows))
    return str(path)


@pytest.fixture(scope="module")
def advice(trace: str, tmp_path_factory: pytest.TempPathFactory) -> Advice:
    output = str(tmp_path_factory.mktemp("best") / "best.seqtop")
    changes = ["num_gpu_blocks=64", "max_num_seqs=2"]
    question = Question(source=trace, changes=changes, step_time=TIMES, output=output)
    return advise(question, Slo(ttft=0.5, tpot=0.05))


def test_the_limit_of_the_recorded_settings_is_lifted(advice: Advice) -> None:
    best, recorded = advice.best, advice.recorded
    assert best is not None
    assert recorded is not None
    assert recorded.goodput < 0.6
    assert best.goodput == 1.0
    assert set(best.settings) == {"max_num_seqs"}
    words = sentence(advice)
    assert words.startswith(f"max_num_seqs 2 → {best.settings['max_num_seqs']} lifts goodput from ")
    assert "to 100%" in words
    assert best.highest_load is not None
    assert best.highest_load >= 1.0
    assert recorded.highest_load is not None
    assert recorded.highest_load < 1.0


def test_the_best_run_is_a_recording_with_these_settings(advice: Advice) -> None:
    assert advice.question.output is not None
    assert advice.best is not None
    with FileStore(advice.question.output) as recording:
        info = recording.at(recording.last).info
    assert info is not None
    assert info.max_num_seqs == advice.best.settings["max_num_seqs"]
    assert info.predicted_from == "trace.jsonl"


def test_the_table_has_a_share_for_each_objective(advice: Advice) -> None:
    text = advice_report.as_text(advice)
    (header,) = (line for line in text.splitlines() if line.endswith(" settings"))
    assert "TTFT met" in header
    assert "TPOT met" in header
    assert "not searched: num_gpu_blocks: the memory of the pool is taken as given" in text
    document = json.loads(advice_report.as_json(advice))
    assert document["sentence"] == sentence(advice)
    assert document["trials"][0]["figures"]["num_within"] == {"ttft": 30, "tpot": 30}
    assert document["binding_objective"] in ("ttft", "tpot")


def test_an_engine_that_does_well_is_left_alone(trace: str) -> None:
    question = Question(source=trace, changes=["num_gpu_blocks=64"], step_time=TIMES)
    found: list[int] = []
    advice = advise(question, Slo(ttft=5.0), found=lambda own: found.append(len(own.trials)))
    assert advice.best is advice.recorded
    assert sentence(advice).startswith("no setting that was tried does better than the recorded")
    assert len(found) == 3, "no other setting is tried with more requests"


def test_an_interrupted_search_keeps_the_best_so_far(trace: str) -> None:
    def interrupt(_: Advice) -> None:
        raise KeyboardInterrupt

    question = Question(source=trace, changes=["num_gpu_blocks=64"], step_time=TIMES)
    advice = advise(question, Slo(ttft=5.0), found=interrupt)
    assert advice.is_partial
    assert advice.best is not None
    assert "ended before its end" in advice_report.as_text(advice)


def test_a_search_that_ends_before_the_proof_has_proven_nothing(tmp_path: Path) -> None:
    def end(_: Advice) -> None:
        raise TimeUpError

    path = tmp_path / "run.seqtop"
    record_run(path)
    advice = advise(Question(source=str(path)), Slo(ttft=0.05), found=end)
    assert advice.is_partial
    assert advice.best is not None
    assert not advice.basis.is_proven
    text = advice_report.as_text(advice)
    assert "249 steps, which had not been repeated when the search ended" in text
    assert "whether it repeats the recording is not known" in text


def test_policies_of_a_folder_are_ranked_with_the_settings(trace: str, tmp_path: Path) -> None:
    """Of equal requests, none is shorter: the rule that serves the newest first is the worst."""
    (tmp_path / "newest_first.py").write_text(
        "from engine_stub.core.policy import SchedulingPolicy\n"
        "class NewestFirst(SchedulingPolicy):\n"
        "    def rank(self, seq_group):\n"
        "        return (-seq_group.arrival_time,)\n"
    )
    question = Question(source=trace, changes=["num_gpu_blocks=64"], step_time=TIMES)
    tried: list[Settings] = []

    def found(own: Advice) -> None:
        tried.extend(trial.settings for trial in own.trials)

    advice = advise(question, Slo(ttft=5.0), found=found, policies=str(tmp_path))
    assert {"scheduling_policy": str(tmp_path / "newest_first.py")} in tried
    assert advice.best is advice.recorded
    with pytest.raises(SettingError, match="there is no policy in"):
        advise(question, Slo(ttft=5.0), policies=str(tmp_path / "nowhere"))
