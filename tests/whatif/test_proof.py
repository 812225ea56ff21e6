"""A recorded run of the bundled engine comes out again, and its predictions are what runs do."""

from pathlib import Path
from typing import Any

import pytest

from seqtop.history import FileStore
from seqtop.history.step_time import fit
from seqtop.whatif.replay import ReplayOptions
from seqtop.whatif.workload import read_workload
from seqtop.wire.messages import Event, Step
from tests.support.greedy_runs import record_run
from tests.support.random_runs import small_models
from tests.support.replaying import compared, figures_alone, record_random, replayed

NUM_RUNS = 15


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return small_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording that is predicted from."""
    path = tmp_path_factory.mktemp("base") / "base"
    record_run(path)
    return path


def test_random_runs_come_out_again(tmp_path: Path, models: list[Path]) -> None:
    """Beams, samples, drafts, swapping, aborts, preemptions, pooling, several iterations a step."""
    num_steps = num_preemptions = num_aborts = 0
    for seed in range(NUM_RUNS):
        path, again = tmp_path / "run.seqtop", tmp_path / "again.seqtop"
        run = record_random(path, seed, models)
        options = ReplayOptions(model=str(run.engine.config.model))
        result = replayed(path, again, options)
        comparison = compared(path, again)
        assert comparison.first is None, (seed, comparison.first)
        assert not comparison.settings
        assert (result.num_steps, result.cut, result.refused) == (run.num_steps, {}, {})
        assert figures_alone(path, options) == result.figures
        num_steps += run.num_steps
        num_aborts += run.num_aborts
        with FileStore(again) as recording:
            state = recording.at(recording.last)
        assert state.info is not None
        assert state.info.predicted_from == "run.seqtop"
        num_preemptions += state.stats.num_preemptions if state.stats else 0
    assert num_steps > 500
    assert num_preemptions > 1
    assert num_aborts > 5


def test_requests_that_want_more_tokens_than_are_recorded_are_cut(tmp_path: Path) -> None:
    steps = 0

    def until_a_step(event: Event) -> Event | None:
        nonlocal steps
        if steps == 40:
            return None
        steps += isinstance(event, Step)
        return event

    record_run(tmp_path / "run", until_a_step)
    step_time = fit([], {"step": 1e-3, "prefill": 1e-5, "decode": 1e-4})
    result = replayed(tmp_path / "run", tmp_path / "again", ReplayOptions(step_time=step_time))
    with FileStore(tmp_path / "run") as recording:
        state = recording.at(recording.last)
    ends = {name: request.metrics.finished_time for name, request in state.requests.items()}
    assert {*result.cut} == {name for name, end in ends.items() if end is None}
    assert result.cut


@pytest.mark.parametrize(
    "changes",
    [
        {"num_gpu_blocks": 64},
        {"num_gpu_blocks": 32},
        {"max_num_seqs": 4},
        {"max_num_batched_tokens": 48},
        {"enable_prefix_caching": False},
        {"num_cpu_blocks": 30, "preemption_mode": "swap"},
    ],
)
def test_a_prediction_is_what_a_run_with_these_settings_does(
    base: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    real, predicted = tmp_path / "real", tmp_path / "predicted"
    record_run(real, **changes)
    assert compared(base, real).first is not None, "the settings make no difference"
    with FileStore(base) as recording:
        step_time = fit(read_workload(recording).steps)
    result = replayed(base, predicted, ReplayOptions(settings=changes, step_time=step_time))
    comparison = compared(real, predicted)
    assert comparison.first is None
    assert not comparison.settings
    assert not result.cut
