"""`seqtop whatif`: the proof, a prediction, and recordings that cannot be replayed."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.history import FileStore, FileWriter
from seqtop.sequence import latency
from seqtop.wire import parsing
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, Step
from seqtop.wire.redaction import redact
from tests.support.events import engine_info
from tests.support.greedy_runs import NUM_REQUESTS, record_run

POLICIES = Path(__file__).parents[2] / "docs" / "policies"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("whatif") / "run.seqtop"
    record_run(path)
    return str(path)


def figures_of(answer: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Returns the figures of the recorded, the unchanged and the predicted run."""
    unchanged, predicted = answer["unchanged"]["figures"], answer["predicted"]["figures"]
    return answer["basis"]["recorded"], unchanged, predicted


def test_the_recording_comes_out_again(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "again.seqtop")
    assert main(["whatif", recording, "-o", output]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["unchanged", "settings:"]
    assert words[2] == words[4]
    assert main(["diff", recording, output]) == 0


def test_more_blocks_are_predicted_and_written_as_a_recording(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "more.seqtop"
    arguments = ["whatif", recording, "--set", "num_gpu_blocks=+60%", "-o", str(output)]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["is_proven"]
    assert answer["basis"]["proof"]["first_difference"] is None
    assert answer["settings"] == {"num_gpu_blocks": 64}
    assert answer["recorded_settings"] == {"num_gpu_blocks": 40}
    recorded, unchanged, predicted = figures_of(answer)
    assert recorded["num_preemptions"] > predicted["num_preemptions"]
    assert unchanged["e2e"]["p99"] > 0
    assert answer["predicted"]["cut"] == {}
    with FileStore(output) as prediction:
        info = prediction.at(prediction.last).info
    assert info is not None
    assert (info.num_gpu_blocks, info.predicted_from) == (64, "run.seqtop")

    assert main(arguments) == 2
    assert "more.seqtop exists already; --force replaces it" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    said = capsys.readouterr().out
    assert "num_gpu_blocks: 40 → 64" in said
    assert "requests that change most:\n  req-" in said
    assert "decisions: the engine's own scheduler, which repeated the recording" in said
    assert "times: at the recorded speed" in said
    for command in (["check"], ["show"], ["explain", "--slow"], ["export", "--csv"]):
        assert main([*command, str(output)]) == 0
        assert "more.seqtop is a PREDICTION from run.seqtop" in capsys.readouterr().err
    trace = tmp_path / "more.pftrace"
    assert main(["export", "--perfetto", str(output), "-o", str(trace)]) == 0
    assert b"PREDICTION from run.seqtop" in trace.read_bytes()
    assert main(["whatif", str(output)]) == 2
    assert "is a prediction from run.seqtop; use that one" in capsys.readouterr().err


def test_without_a_request_and_at_twice_the_load(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--without", "req-3", "--scale-arrivals", "2", "--arrivals", "time", "--json"]
    assert main(["whatif", recording, *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    recorded, unchanged, predicted = figures_of(answer)
    assert recorded["num_requests"] == unchanged["num_requests"] == NUM_REQUESTS
    assert predicted["num_requests"] == NUM_REQUESTS - 1
    assert all(changed["request_id"] != "req-3" for changed in answer["changed"])
    assert predicted["ttft"]["p90"] > unchanged["ttft"]["p90"]


def test_requests_without_an_end_in_the_recording_have_no_predicted_latency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_steps = 0

    def until_a_step(event: Event) -> Event | None:
        nonlocal num_steps
        num_steps += isinstance(event, Step)
        return event if num_steps < 150 else None

    path = tmp_path / "part.seqtop"
    record_run(path, until_a_step)
    arguments = ["whatif", str(path), "--set", "num_gpu_blocks=+20%"]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    unfinished = answer["basis"]["unfinished"]
    assert answer["predicted"]["cut"].keys() == {*unfinished}
    assert answer["changed"]
    assert not {changed["request_id"] for changed in answer["changed"]} & {*unfinished}
    assert main(arguments) == 0
    before_the_table, _ = capsys.readouterr().out.split("makespan")
    assert f"{len(unfinished)} requests had not ended" in before_the_table
    with FileStore(path) as store:
        requests = store.at(store.last).requests.values()
    known = [latency.ttft(request.metrics) for request in requests]
    served = [ttft for ttft in known if ttft is not None]
    assert len(served) > len(requests) - len(unfinished)
    assert answer["basis"]["recorded"]["ttft"]["p50"] == pytest.approx(statistics.median(served))


def test_a_policy_of_one_s_own_is_predicted_and_repeated(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = str(POLICIES / "shortest_prompt_first.py")
    assert main(["whatif", recording, "--policy", policy, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["settings"] == {"scheduling_policy": policy}
    assert answer["changed"]
    path = str(tmp_path / "run.seqtop")
    record_run(Path(path), scheduling_policy=policy)
    assert main(["whatif", path, "--policy", policy, "--set", "max_num_seqs=8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["is_proven"]
    assert answer["recorded_settings"]["scheduling_policy"] == "shortest_prompt_first"
    assert main(["whatif", path]) == 2
    assert "ran with the policy shortest_prompt_first, which a" in capsys.readouterr().err
    assert main(["whatif", recording, "--policy", "nowhere.py"]) == 2
    assert "there is no policy nowhere.py" in capsys.readouterr().err
    assert main(["whatif", recording, "--set", f"scheduling_policy={policy}"]) == 2
    assert "scheduling_policy cannot be changed: --policy gives its file" in capsys.readouterr().err


def test_a_setting_is_swept(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The values of a range, of which the engine refuses one, beside another change."""
    options = ["--sweep", "num_gpu_blocks=0..64:3", "--set", "max_num_seqs=8", "--slo", "e2e=1h"]
    assert main(["whatif", recording, *options, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [point["settings"] for point in answer["points"]] == [
        {"num_gpu_blocks": number} for number in (0, 32, 64)
    ]
    refused, few, many = answer["points"]
    assert refused["error"] == "num_gpu_blocks must be at least 1, got 0"
    assert few["figures"]["num_preemptions"] > many["figures"]["num_preemptions"]
    assert few["figures"]["num_within_slo"] == NUM_REQUESTS
    assert main(["whatif", recording, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "PREDICTION, of no real runs:" in lines
    assert "num_gpu_blocks: 40 recorded" in lines
    assert any(line.lstrip().startswith("32 ") and line.endswith("█") for line in lines)
    assert main(["whatif", recording, "--sweep", "preemption_victim=last,largest", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["recorded"], len(answer["points"])) == ({"preemption_victim": "last"}, 2)


def test_several_settings_are_swept_in_all_combinations(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--sweep", "num_gpu_blocks=32,64", "--sweep", "max_num_seqs=4,8"]
    assert main(["whatif", recording, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"num_gpu_blocks: 40 recorded", "max_num_seqs: 10 recorded"} <= {*lines}
    start = next(place for place, line in enumerate(lines) if "tokens/s" in line)
    rows = [line.split()[:2] for line in lines[start + 1 : start + 5]]
    assert rows == [["32", "4"], ["32", "8"], ["64", "4"], ["64", "8"]]
    for more, said in (
        ("max_num_seqs=2", "max_num_seqs is given twice, by --sweep"),
        ("block_size=1..60:60", "a sweep has 100 combinations of values at most"),
    ):
        assert main(["whatif", recording, *options, "--sweep", more]) == 2
        assert said in capsys.readouterr().err


def test_the_highest_load_that_keeps_the_objectives_has_a_range(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With known times of steps; the base run has preemptions, so that a load of 1 is too much."""
    times = ["--step-time", "step=1ms,prefill=10us,decode=100us,gap=0"]
    assert main(["whatif", recording, *times, "--capacity", "--slo", "e2e=2s", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["highest"] == 8.0
    assert answer["lowest_missed"] is None
    # 99% of 40 requests are all of them. The 99th percentile is at place 38.61 of 0 to 39, and that
    # at place 38 is no less than the 90th, so that this is no less than the longest.
    e2e = answer["points"][0]["figures"]["e2e"]
    wanted = str((e2e["p99"] - 0.39 * e2e["p90"]) / 0.61 * 1.001)
    assert main(["whatif", recording, *times, "--capacity", "--slo", f"e2e={wanted}"]) == 0
    said = capsys.readouterr().out
    assert "for 99% of the requests: up to " in said or "still at" in said
    assert "given by you, not measured: step, prefill, decode, gap" in said
    assert main(["whatif", recording, "--capacity", "--slo", "ttft=1us"]) == 0
    assert "not even at 0.25 times the recorded load" in capsys.readouterr().out


def test_a_closed_loop_serves_all_requests(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ["--step-time", "step=1s", "--set", "max_num_seqs=9", "--json"]
    for options in ([], ["--closed-loop"]):
        assert main(["whatif", recording, *slow, *options]) == 0
        predicted = json.loads(capsys.readouterr().out)["predicted"]
        assert predicted["figures"]["num_requests"] == NUM_REQUESTS
        assert bool(predicted["num_following"]) is bool(options)


def test_times_of_another_recording_are_used_too(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--calibrate", recording, "--set", "max_num_seqs=9", "--json"]
    assert main(["whatif", recording, *options]) == 0
    basis = json.loads(capsys.readouterr().out)["basis"]
    (other,) = basis["calibrations"]
    assert other["ratio"] == pytest.approx(1.0, abs=0.1)
    assert basis["step_time"]["num_steps"] > other["num_steps"]


def test_times_beyond_the_recorded_steps_are_a_guess(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = ["--set", "max_num_seqs=40", "--set", "num_gpu_blocks=200", "--scale-arrivals", "50"]
    assert main(["whatif", recording, *larger]) == 0
    said = capsys.readouterr().out
    assert "?: a guess. " in said
    assert "of the predicted time is in steps larger than any recorded one" in said
    marked = [line for line in said.splitlines() if line.endswith("  ?")]
    assert [line.split("  ")[0] for line in marked][:2] == ["makespan", "output tokens per second"]
    assert not any(line.startswith("preemptions") for line in marked)


def test_decisions_are_predicted_where_times_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_steps = 0

    def first_steps(event: Event) -> Event | None:
        nonlocal num_steps
        num_steps += isinstance(event, Step)
        return event if num_steps <= 12 else None

    path = tmp_path / "short.seqtop"
    record_run(path, first_steps)
    assert main(["whatif", str(path), "--set", "max_num_seqs=2"]) == 0
    said = capsys.readouterr().out
    assert "No times are predicted: " in said
    assert "are too few for a model of their times" in said
    assert "preemptions" in said
    assert "TTFT p50" not in said


def test_the_distance_of_the_model_is_said(
    recording: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = ["--step-time", "step=1s", "--set", "max_num_seqs=9"]
    assert main(["whatif", recording, *slow]) == 0
    said = capsys.readouterr().out
    assert "The model's TTFT p" in said
    assert "come from the times of steps" in said
    assert main(["whatif", recording, *slow, "--json"]) == 0
    own = json.loads(capsys.readouterr().out)["distance"]
    assert own["by_time"] > 2 * own["recorded"]
    assert own["by_step"] > own["recorded"]


def test_a_run_of_another_scheduler_does_not_come_out_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def claim_more_blocks(event: Event) -> Event:
        if isinstance(event, EngineInfo):
            return msgspec.structs.replace(event, num_gpu_blocks=64)
        return event

    path = tmp_path / "run.seqtop"
    record_run(path, claim_more_blocks)
    assert main(["whatif", str(path), "--set", "max_num_seqs=12"]) == 1
    said = capsys.readouterr().out
    assert "  recorded, step " in said
    assert "no prediction, since the recording cannot be repeated; --anyway makes one" in said
    assert main(["whatif", str(path), "--set", "max_num_seqs=12", "--anyway"]) == 1
    assert "a scheduler that does not repeat the recording" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--set", "blocks=3"], "no setting 'blocks': there are block_size"),
        (["--set", "num_gpu_blocks=x"], "num_gpu_blocks is a number or a change such as +20%"),
        (["--set", "num_gpu_blocks=0"], "num_gpu_blocks must be at least 1, got 0"),
        (["--set", "preemption_mode=x"], "preemption_mode must be recompute or swap, got 'x'"),
        (["--sweep", "num_gpu_blocks=1..9:500"], "a range has 2 to 100 values, not 500"),
        (["--sweep", "enable_prefix_caching=on..off:2"], "enable_prefix_caching has no range"),
        (["--sweep", "max_num_seqs=4", "--set", "max_num_seqs=5"], "max_num_seqs is given twice"),
        (["--sweep", "max_num_seqs=4", "-o", "x.seqtop"], "-o writes one prediction"),
        (["--capacity"], "--capacity needs --slo"),
        (["--slo", "ttft=1"], "--slo is for --sweep and --capacity"),
        (["--capacity", "--slo", "ttft=1", "--closed-loop"], "--capacity is for arrivals by time"),
        (["--closed-loop", "--scale-arrivals", "2"], "--scale-arrivals is for arrivals by time"),
        (["--step-time", "prefil=1"], "'prefil=1' is not like prefill=0.1ms"),
        (["--calibrate", "/none", "--set", "max_num_seqs=9"], "/none cannot be opened"),
        (["--without", "nothing"], "the recording has no request 'nothing'"),
        (["--model", "/nonexistent", "--set", "max_num_seqs=9"], "/nonexistent"),
    ],
)
def test_a_question_that_makes_no_sense(
    recording: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", recording, *arguments]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def of_another_engine(event: Event) -> Event:
    if isinstance(event, EngineInfo):
        return msgspec.structs.replace(event, engine="nano 1.0")
    return event


def without_the_first_arrivals(event: Event) -> Event | None:
    is_early = isinstance(event, RequestArrived) and event.request_id in ("req-0", "req-1")
    return None if is_early else event


def started_again(event: Event) -> Event:
    if isinstance(event, Step) and event.step == 100:
        return engine_info(incarnation="another")
    return event


def with_an_adapter(event: Event) -> Event:
    if isinstance(event, RequestArrived) and event.request_id == "req-9":
        return msgspec.structs.replace(event, lora="mine")
    return event


def without_steps(event: Event) -> Event | None:
    return None if isinstance(event, Step) else event


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (redact, "the recording is redacted: without tokens it cannot be replayed"),
        (of_another_engine, "the scheduler of nano 1.0 cannot be run again yet"),
        (without_the_first_arrivals, "sequence 0 belongs to no request"),
        (without_steps, "the recording has no step"),
        (started_again, "the engine was started again after 100 steps"),
        (with_an_adapter, "request req-9 uses a LoRA adapter"),
    ],
)
def test_a_recording_that_cannot_be_replayed(
    change: Callable[[Event], Event | None],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "run.seqtop"
    record_run(path, change)
    assert main(["whatif", str(path), "--set", "max_num_seqs=9"]) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_of_which_a_whole_run_cannot_be_read(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path(recording).read_bytes()
    path = tmp_path / "run.seqtop"
    for data, sentence in (
        (b"no recording", "run.seqtop"),
        (whole[: len(whole) // 2], "only a whole run can be replayed"),
    ):
        path.write_bytes(data)
        assert main(["whatif", str(path)]) == 2
        assert sentence in capsys.readouterr().err


def test_a_viewer_that_joins_after_an_arrival_and_before_the_first_step_has_seen_the_whole_run(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "joined.seqtop"
    with FileStore(recording) as whole, FileWriter(path) as writer:
        events = whole.events(whole.first, whole.last)
        start = next(position for position, event in events if isinstance(event, Step)) - 1
        state = whole.at(start)
        assert state.step < 0
        assert state.requests
        writer.restore("one", start, state)
        for position, payload in whole.payloads(start, whole.last):
            assert payload is not None
            event = parsing.event(payload)
            state.apply(event)
            writer.append(position, payload, event, state)
    assert main(["whatif", str(path)]) == 0
    assert "steps equal" in capsys.readouterr().out


def test_a_recording_that_starts_in_the_middle(
    recording: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot be replayed, but it may tell the times of steps."""
    path = tmp_path / "late.seqtop"
    with FileStore(recording) as whole, FileWriter(path) as writer:
        start = whole.index.at_step(100)
        state = whole.at(start)
        writer.restore("one", start, state)
        for position, payload in whole.payloads(start, whole.last):
            assert payload is not None
            event = parsing.event(payload)
            state.apply(event)
            writer.append(position, payload, event, state)
    assert main(["whatif", str(path)]) == 2
    assert "the recording starts in the middle of a run: " in capsys.readouterr().err
    options = ["--calibrate", str(path), "--set", "max_num_seqs=9"]
    assert main(["whatif", recording, *options]) == 0
    assert "late.seqtop" in capsys.readouterr().out


def test_a_package_of_the_extra_that_is_missing_is_named(
    recording: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'tokenizers'\", name='tokenizers')"
    (tmp_path / "tokenizers.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["whatif", recording]) == 2
    assert capsys.readouterr().err == (
        "seqtop: a replay needs tokenizers, which is not installed:"
        " pip install 'seqtop-llm[whatif]'\n"
    )
