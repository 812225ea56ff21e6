"""Traces through the bundled scheduler, without a model."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import SCHEDULER_SETTINGS, EngineConfig
from seqtop.history import FileStore
from seqtop.history.step_time import StepTimeError
from seqtop.state.slo import Slo
from seqtop.whatif import report
from seqtop.whatif.predict import WHATIF_ERRORS, Prediction, Question, predict
from seqtop.whatif.settings import SettingError
from seqtop.whatif.sweep import find_capacity, sweep
from seqtop.whatif.trace_engine import engine_of
from seqtop.whatif.traces import Trace, TraceError, TraceRequest
from seqtop.wire.messages import RequestArrived, RequestFinished, Step

TIMES = {"step": 0.01, "prefill": 1e-4, "decode": 1e-3}
POOL = ["num_gpu_blocks=400"]
TURN = {"session_id": "a", "output_length": 8}
ROWS = [
    {"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [1, 2, 3]},
    {"timestamp": 5000, "input_length": 1030, "output_length": 12, "hash_ids": [1, 2, 4]},
    {**TURN, "timestamp": 6000, "input_length": 64},
    {**TURN, "delay": 2000, "input_length": 32},
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def answer(trace: str, **options: Any) -> Prediction:
    return predict(Question(source=trace, step_time=TIMES, **{"changes": POOL, **options}))


def test_the_requests_have_the_lengths_and_times_of_the_trace(trace: str, tmp_path: Path) -> None:
    path = str(tmp_path / "prediction.seqtop")
    prediction = answer(trace, output=path)
    assert prediction.predicted is not None
    figures = prediction.predicted.figures
    assert figures.num_requests == len(ROWS)
    assert figures.num_output_tokens == 10 + 12 + 8 + 8
    # Two blocks of 512 tokens of the second row, and the full blocks of the first turn's history.
    assert figures.num_hit_tokens == 1024 + 64
    arrived, ended, lengths = {}, {}, {}
    with FileStore(path) as recording:
        for _, event in recording.events(recording.first, recording.last):
            if isinstance(event, RequestArrived):
                arrived[event.request_id] = event.arrival_time
                lengths[event.request_id] = event.num_prompt_tokens
            elif isinstance(event, RequestFinished):
                ended[event.request_id] = event.time
            elif isinstance(event, Step):
                assert not event.preemptions
    assert [*lengths.values()] == [1100, 1030, 64, 64 + 8 + 32]
    first, second, turn, following = arrived
    assert (arrived[first], arrived[second], arrived[turn]) == (0.0, 5.0, 6.0)
    assert arrived[following] == pytest.approx(ended[turn] + 2.0)


def test_the_queue_is_counted_in_steps(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"timestamp": 0, "input_length": 64, "output_length": 10}
    path.write_text(f"{json.dumps(row)}\n" * 2)
    medians: list[float | None] = []
    for limit in (1, 2):
        run = answer(str(path), changes=[*POOL, f"max_num_seqs={limit}"]).predicted
        assert run is not None
        medians.append(run.figures.queue_steps.p50)
    assert medians == [(0 + 10) / 2, 0]


def test_twice_the_load_and_the_first_rows_only(trace: str) -> None:
    fast = answer(trace, scale_arrivals=2.0, limit=2).predicted
    assert fast is not None
    assert fast.figures.num_requests == 2
    assert fast.figures.makespan < 3.0


def test_a_sweep_and_a_capacity_of_a_trace(trace: str, tmp_path: Path) -> None:
    question = Question(source=trace, step_time=TIMES, changes=POOL)
    slo = Slo(ttft=1.0)
    points = sweep(question, ["max_num_seqs=1,2"], slo).points
    assert [point.figures.num_within_slo for point in points] == [4, 4]
    path = tmp_path / "even.jsonl"
    row = {"input_length": 500, "output_length": 10}
    path.write_text("".join(json.dumps({"timestamp": 1000 * n, **row}) + "\n" for n in range(12)))
    question = Question(source=str(path), step_time=TIMES, changes=[*POOL, "max_num_seqs=1"])
    capacity = find_capacity(question, Slo(ttft=0.3))
    # Three times, the loads between which it is are divided into thirds, as ratios.
    refined = [8 * 2**-share for share in (2 / 3, 1 / 3, 2 / 9, 5 / 27, 4 / 27, 1 / 9)]
    loads = [point.load for point in capacity.points]
    assert loads == pytest.approx([0.25, 0.5, 1, 2, 4, *refined, 8])
    assert (capacity.highest, capacity.lowest_missed) == (loads[9], loads[10])


def test_the_answer_says_that_nothing_was_recorded(trace: str) -> None:
    prediction = answer(trace)
    text = report.as_text(prediction)
    assert text.startswith(
        "Mooncake trace: 4 requests\n  engine: block_size=16, num_gpu_blocks=400"
    )
    assert "with the arrivals and lengths of the trace" in text
    assert "recorded" not in text.replace("any recorded one", "")
    document = json.loads(report.as_json(prediction))
    assert document["basis"]["proof"] is None
    assert document["basis"]["trace"]["format"] == "Mooncake"


def test_requests_that_do_not_fit_are_counted(trace: str) -> None:
    prediction = answer(trace, changes=[*POOL, "max_model_len=1050"])
    assert prediction.predicted is not None
    assert prediction.predicted.figures.num_requests == 3
    assert prediction.basis.trace.left_out == {"longer than 1,050 tokens": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"changes": []}, "the size of the engine's pool is not known"),
        ({"changes": [*POOL, "max_model_len=10"]}, "no request of it fits 10 tokens"),
        ({"step_time": {}}, "0 steps are too few for a model of their times"),
        ({"arrivals": "step"}, "its requests arrive by time"),
        ({"without": ["nobody"]}, "has no request 'nobody'"),
        ({"changes": [*POOL, "speculative=ngram"]}, "speculative cannot be changed"),
    ],
)
def test_a_question_that_has_no_answer(trace: str, options: dict[str, Any], words: str) -> None:
    question = Question(**{"source": trace, "step_time": TIMES, "changes": POOL, **options})
    with pytest.raises(WHATIF_ERRORS, match=words):
        predict(question)
    assert issubclass(StepTimeError, WHATIF_ERRORS)


def test_a_file_of_another_kind_names_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    with pytest.raises(TraceError, match="is neither a seqtop recording nor a trace"):
        answer(str(path))


def test_the_engine_has_the_defaults_of_the_bundled_one() -> None:
    one = Trace(format="", requests=[TraceRequest(input_length=5, output_length=5)])
    info = engine_of(one, ["num_gpu_blocks=99"], [])
    defaults = EngineConfig()
    for field in dataclasses.fields(EngineConfig):
        if field.name in SCHEDULER_SETTINGS:
            assert info.scheduler_settings[field.name] == getattr(defaults, field.name), field.name
        elif hasattr(info, field.name) and field.name not in {
            "num_gpu_blocks",
            "num_cpu_blocks",
            "max_model_len",
            "model",
            "device",
            "dtype",
        }:
            assert getattr(info, field.name) == getattr(defaults, field.name), field.name
    assert info.max_model_len == 10


def test_a_pool_of_one_block_limits_the_length_of_requests(tmp_path: Path) -> None:
    def length(input_length: int, num_blocks: int) -> int:
        requests = [
            TraceRequest(input_length=number, output_length=2) for number in (input_length, 1)
        ]
        info = engine_of(
            Trace(format="made up", requests=requests), [f"num_gpu_blocks={num_blocks}"], []
        )
        assert (info.start_time, info.predicted_from) == (0.0, "")
        return info.max_model_len

    assert [length(3, 1), length(14, 1), length(15, 1), length(15, 2)] == [5, 16, 16, 17]
    with pytest.raises(SettingError, match="the size of the engine's pool is not known"):
        length(3, 0)
