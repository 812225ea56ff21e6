"""The knowledge of a recording on which predictions are based, before anything is replayed."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.history import FileWriter
from seqtop.history.step_time import Size, StepTime
from seqtop.state import EngineState
from seqtop.whatif import predict
from seqtop.whatif.figures import Distribution, RunFigures
from seqtop.whatif.predict import ModelDistance, Question, Replays
from seqtop.whatif.replay import ReplayOptions, ReplayResult
from seqtop.whatif.settings import SettingError
from seqtop.whatif.workload import WorkloadError
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo, Event
from tests.support.broken_recordings import record
from tests.support.events import arrival, engine_info, stats, step

INFO = engine_info(engine="engine_stub 1")


def recorded(path: Path, num_before: int) -> str:
    """Records an engine that has made some steps before the recording begins."""
    state = EngineState()
    state.apply(INFO)
    for number in range(num_before):
        state.apply(step(number))
    with FileWriter(path) as writer:
        writer.restore("one", 9, state)
        events: tuple[Event, ...] = (arrival(1), step(num_before), step(num_before + 1))
        for number, event in enumerate(events, 10):
            state.apply(event)
            writer.append(number, codec.encode(event), event, state)
    return str(path)


@pytest.mark.parametrize(("num_before", "starts_late"), [(0, False), (1, True), (2, True)])
def test_a_recording_that_begins_after_a_step_starts_late(
    tmp_path: Path, num_before: int, starts_late: bool
) -> None:
    source = recorded(tmp_path / "run.seqtop", num_before)
    replays = Replays(Question(source=source, changes=["max_num_seqs=4"]))
    proof = replays.basis.proof
    assert proof is not None
    assert (proof.starts_late, proof.is_complete) == (starts_late, False)
    assert replays.settings == {"max_num_seqs": 4}
    assert (replays.basis.num_requests, replays.basis.unfinished) == (1, ["req-1"])
    with pytest.raises(WorkloadError, match="the recording has no request 'req-2'"):
        Replays(Question(source=source, without=["req-1", "req-2"]))
    with pytest.raises(SettingError, match="--scale-arrivals is for arrivals by time"):
        Replays(Question(source=source, arrivals="step", scale_arrivals=2.0))


def timed(path: Path, scale: float, info: EngineInfo = INFO) -> str:
    """Records steps of sizes that differ, whose times follow from them."""
    state, now = EngineState(), 100.0
    state.apply(info)
    with FileWriter(path) as writer:
        writer.restore("one", 0, state)
        for number in range(24):
            prefill, decode = 16 * (number % 4), 1 + number % 3
            seconds = scale * (0.25 + prefill / 128 + decode / 64)
            figures = stats(num_prefill_tokens=prefill, num_decode_tokens=decode)
            event = step(number, start_time=now, time=now + seconds, stats=figures)
            state.apply(event)
            writer.append(number + 1, codec.encode(event), event, state)
            now += seconds
    return str(path)


def test_other_recordings_are_compared_with_the_times_of_the_own_one(tmp_path: Path) -> None:
    own, slow = timed(tmp_path / "own.seqtop", 1.0), timed(tmp_path / "slow.seqtop", 2.0)
    replays = Replays(Question(source=own, calibrations=[slow]))
    replays.fit()
    (calibration,) = replays.basis.calibrations
    assert (calibration.path, calibration.num_steps) == (slow, 24)
    assert calibration.ratio == pytest.approx(2.0, rel=1e-3)
    alone = Replays(Question(source=own))
    alone.fit()
    both, first = replays.basis.step_time, alone.basis.step_time
    assert both is not None
    assert first is not None
    size = Size(32, 2)
    assert first.step_seconds(size) == pytest.approx(0.25 + 32 / 128 + 2 / 64, rel=1e-3)
    assert both.step_seconds(size) > 1.2 * first.step_seconds(size)


@pytest.mark.parametrize(
    ("change", "has_changes"),
    [
        ({}, False),
        ({"arrivals": "step", "calibrations": ["b.seqtop"], "anyway": True}, False),
        ({"without": ["req-1"]}, True),
        ({"scale_arrivals": 2.0}, True),
        ({"changes": ["max_num_seqs=4"]}, True),
        ({"policy": "mine.py"}, True),
    ],
)
def test_without_a_change_there_is_nothing_to_predict(
    change: dict[str, Any], has_changes: bool
) -> None:
    assert Question(source="a.seqtop", **change).has_changes is has_changes


@pytest.mark.parametrize(
    ("is_equal", "anyway", "may_predict"),
    [(True, False, True), (False, False, False), (False, True, True)],
)
def test_a_repeated_run_that_differs_is_predicted_from_only_if_that_is_wanted(
    tmp_path: Path, is_equal: bool, anyway: bool, may_predict: bool
) -> None:
    source = recorded(tmp_path / "run.seqtop", 0)
    newer = engine_info(engine="engine_stub 2")
    again = source if is_equal else timed(tmp_path / "again.seqtop", 1.0, newer)
    repeated: Future[ReplayResult] = Future()
    repeated.set_result(ReplayResult())
    replays = Replays(Question(source=source, anyway=anyway))
    assert replays.prove(repeated, again) is may_predict
    assert replays.basis.proof is not None
    assert replays.basis.is_proven is is_equal
    assert replays.basis.proof.is_complete
    assert replays.basis.proof.repeated_by == ("" if is_equal else "engine_stub 2")


def test_each_of_too_few_steps_takes_their_mean_time(tmp_path: Path) -> None:
    replays = Replays(Question(source=recorded(tmp_path / "run.seqtop", 0)))
    replays.fit_or_guess()
    basis = replays.basis
    assert basis.step_time == StepTime(per_step=0.5, per_prefill_token=0.0, per_decode_token=0.0)
    assert basis.times_unknown.startswith("0 steps are too few for a model of their times")
    assert basis.arrivals == "step", "so that decisions depend on no time"


@pytest.mark.parametrize(
    ("recorded_ttft", "predicted_ttft", "expected"),
    [
        ((1.0, 2.0, None), (0.5, 2.5, 9.0), ModelDistance(50, 1.0, 7.0, 0.5)),
        ((1.0, 2.0, 4.0), (1.0, 2.0, 8.0), ModelDistance(99, 4.0, 9.0, 8.0)),
        ((1.0, 2.0, 4.0), (1.0, 2.0, 4.0), None),
        ((None, None, None), (1.0, 2.0, 4.0), None),
    ],
)
def test_the_largest_distance_of_the_model_is_that_of_one_percentile(
    recorded_ttft: tuple[float | None, ...],
    predicted_ttft: tuple[float | None, ...],
    expected: ModelDistance | None,
) -> None:
    figures = [RunFigures(ttft=Distribution(*own)) for own in (recorded_ttft, predicted_ttft)]
    replayed: Future[Any] = Future()
    middle = RunFigures(ttft=Distribution(7.0, 8.0, 9.0))
    replayed.set_result(SimpleNamespace(figures=middle, error=None))
    basis = SimpleNamespace(arrivals="time", recorded=figures[0], step_time=None)
    replays: Any = SimpleNamespace(
        basis=basis, unchanged=ReplayOptions, submit=lambda options: replayed
    )
    unchanged: Any = SimpleNamespace(figures=figures[1])
    assert predict._replay_distance(replays, unchanged)() == expected
    basis.arrivals = "step"
    assert predict._replay_distance(replays, unchanged)() is None


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_prediction_is_compared_with_a_replay_of_the_recorded_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_proven: bool
) -> None:
    def submit(_: Replays, options: ReplayOptions, path: str) -> Future[ReplayResult]:
        Path(path).write_text(str(options.settings))
        replay: Future[ReplayResult] = Future()
        replay.set_result(ReplayResult())
        return replay

    monkeypatch.setattr(Replays, "submit", submit)
    monkeypatch.setattr(Replays, "repeat", lambda *_: None)
    monkeypatch.setattr(Replays, "prove", lambda *_: is_proven)
    monkeypatch.setattr(predict, "_decisions", lambda path: Path(path).read_text())
    monkeypatch.setattr(predict, "changed_requests", lambda *runs: [*runs])
    output = tmp_path / "predicted.seqtop"
    source = timed(tmp_path / "own.seqtop", 1.0)
    question = Question(source=source, changes=["max_num_seqs=4"], output=str(output))
    answer: Any = predict.predict(question)
    assert answer.recorded_settings == {"max_num_seqs": INFO.max_num_seqs}
    assert answer.basis.step_time.per_step == pytest.approx(0.25, rel=1e-3)
    assert output.exists() is is_proven
    if is_proven:
        assert answer.changed == ["{}", "{'max_num_seqs': 4}"]
        assert output.read_text() == answer.changed[1]
    assert (answer.unchanged is not None, answer.predicted is not None) == (is_proven, is_proven)


def test_a_trace_has_the_settings_and_the_times_of_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[ReplayOptions] = []

    def submit(_: Replays, options: ReplayOptions, path: str) -> Future[ReplayResult]:
        given.append(options)
        replay: Future[ReplayResult] = Future()
        replay.set_result(ReplayResult())
        return replay

    monkeypatch.setattr(Replays, "submit", submit)
    trace, other = tmp_path / "trace.jsonl", tmp_path / "other.seqtop"
    trace.write_text('{"timestamp": 0, "input_length": 20, "output_length": 5}\n')
    calibration = timed(tmp_path / "own.seqtop", 1.0)
    answer = predict.predict(Question(source=str(trace), calibrations=[calibration]))
    (options,) = given
    assert answer.basis.settings["num_gpu_blocks"] == INFO.num_gpu_blocks
    assert options.step_time is not None
    assert options.step_time.per_step == pytest.approx(0.25, rel=1e-3)
    record(other, (step(0),))
    with pytest.raises(SettingError, match=r"other\.seqtop does not describe its engine"):
        predict.predict(Question(source=str(trace), calibrations=[str(other)]))
