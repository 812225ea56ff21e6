"""The tools: answers of the project's own functions, short, and without texts."""

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seqtop import demo
from seqtop.explain.explanation import explain, find_request
from seqtop.explain.report import as_json as explanation_as_json
from seqtop.history import FileStore
from seqtop.live.session import Session
from seqtop.mcp import answers
from seqtop.mcp.answers import MAX_BYTES
from seqtop.mcp.source import EngineSource, RecordedSource
from seqtop.mcp.tools import TOOLS, Context, ToolError, call, schema
from seqtop.sequence import latency
from seqtop.state import EngineState
from seqtop.state.slo import Slo
from seqtop.state.verdict import of_last_minute, of_whole
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.whatif.advise import Advice, advise, sentence
from seqtop.whatif.driver import TimeUpError
from seqtop.whatif.predict import Question, predict
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, Setting, Step
from tests.support.broken_recordings import damage, record
from tests.support.greedy_runs import record_run
from tests.support.questions import question_run
from tests.support.scripted import ScriptedSource
from tests.support.waiting import SECONDS, wait_until

PROMPT, OUTPUT = "xylophone ", "marimba "
LONG = 10 * SECONDS


def ask(context: Context, name: str, **arguments: Any) -> dict[str, Any]:
    """Returns the answer of a tool, which has to be short and to have the announced form."""
    document = call(TOOLS[name], arguments, context, threading.Event())
    assert len(answers.as_text(document).encode()) <= MAX_BYTES
    assert {*document} == {*schema(TOOLS[name].answer_type)["properties"]}
    return document


def events_of(source: ScriptedSource) -> list[Event]:
    history = source.history
    return [event for _, event in history.events(0, history.last) if event is not None]


def written(source: ScriptedSource, folder: Path) -> str:
    """Writes what a source has played to a recording; returns its path."""
    path = folder / "scripted.seqtop"
    record(path, tuple(events_of(source)))
    return str(path)


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recording whose prompts and outputs have texts."""
    path = tmp_path_factory.mktemp("mcp") / "run.seqtop"
    seen: set[int] = set()

    def add_texts(event: Event) -> Event:
        if isinstance(event, RequestArrived):
            event.prompt = PROMPT * 100
        elif isinstance(event, Step):
            for update in event.sequences:
                if update.seq_id not in seen:
                    seen.add(update.seq_id)
                    update.text_delta = OUTPUT * 100
        return event

    record_run(path, add_texts)
    return str(path)


@pytest.fixture
def context(path: str) -> Context:
    return Context(RecordedSource(path), seconds=LONG)


@pytest.fixture
def demo_context() -> Context:
    return Context(RecordedSource(str(demo.RECORDED_RUN)), seconds=LONG)


def test_the_limit_is_the_verdict(demo_context: Context) -> None:
    answer = ask(demo_context, "what_limits")
    with FileStore(demo.RECORDED_RUN) as recording:
        state = recording.at(recording.last)
    for name, verdict in (
        ("last_minute", of_last_minute(state)),
        ("whole_run", of_whole(state)),
    ):
        assert answer[name]["sentence"] == verdict.sentence
        assert answer[name]["cause"] == verdict.cause
        assert answer[name]["share"] == near(verdict.share)
        assert answer[name]["setting"] == verdict.setting
    assert answer["sentence"] == of_whole(state).sentence
    assert not answer["is_live"]
    figures = answer["figures"]
    assert state.stats is not None
    assert figures["num_waiting_sequences"] == state.stats.num_waiting
    assert figures["output_tokens_per_second"] == pytest.approx(151.2, abs=0.1)  # as whatif counts
    slowest = answer["slowest_requests"][0]
    metrics = state.requests[slowest["request"]].metrics
    assert slowest["seconds"] == near(latency.e2e_latency(metrics))
    (note,) = answer["notes"]
    assert "ttft_p99_seconds" in note, "requests wait for their first token"


def test_the_parts_of_a_request_are_those_of_explain(context: Context, path: str) -> None:
    name = ask(context, "what_limits")["slowest_requests"][0]["request"]
    answer = ask(context, "explain_request", request=name)
    with FileStore(path) as recording:
        found = find_request(recording, name)
        assert found is not None
        wanted = json.loads(explanation_as_json(explain(recording, *found)))
    assert answer["ttft_seconds"] == near(wanted["ttft_seconds"])
    assert answer["e2e_seconds"] == near(wanted["e2e_seconds"])
    assert answer["finish_reason"] == wanted["finish_reason"]
    longest = sorted(wanted["parts"], key=lambda part: -part["seconds"])
    assert len(answer["parts"]) + answer["num_left_out"] == len(longest)
    for part, own in zip(answer["parts"], longest, strict=False):
        assert part["seconds"] == near(own["seconds"])
        assert (part["kind"], part["cause"], part["step"]) == (
            own["kind"],
            own["cause"],
            own["step"],
        )


def test_a_prediction_is_that_of_whatif(context: Context, path: str) -> None:
    answer = ask(context, "what_if", settings=["num_gpu_blocks=+50%"])
    wanted = predict(Question(source=path, changes=["num_gpu_blocks=+50%"]))
    assert wanted.unchanged is not None
    assert wanted.predicted is not None
    runs = [wanted.basis.recorded, wanted.unchanged.figures, wanted.predicted.figures]
    assert answer["is_proven"]
    assert answer["num_equal_steps"] == answer["num_steps"] == runs[0].num_steps
    assert answer["settings"] == {"num_gpu_blocks": [40, 60]}
    assert answer["columns"] == ["recorded", "model", "predicted"]
    assert answer["decisions"]["num_preemptions"] == [run.num_preemptions for run in runs]
    assert answer["times"]["ttft_p99_seconds"] == [near(run.ttft.p99) for run in runs]
    assert answer["times"]["output_tokens_per_second"] == [near(run.throughput) for run in runs]
    assert "num_gpu_blocks 40 → 60" in answer["sentence"]
    assert "preemptions 21 → 0" in answer["sentence"]


def test_advice_is_that_of_advise(context: Context, path: str) -> None:
    answer = ask(context, "advise", objectives="ttft=50ms")
    wanted = advise(Question(source=path), Slo(ttft=0.05))
    assert wanted.best is not None
    assert answer["sentence"] == sentence(wanted)
    assert {name: new for name, (_, new) in answer["settings"].items()} == wanted.best.settings
    assert answer["advised_goodput_share"] == near(wanted.best.goodput)
    assert answer["recorded_goodput_share"] == answer["trials"][-1]["goodput_share"]
    assert answer["trials"][-1]["settings"] == {}
    assert (answer["is_proven"], answer["is_best_so_far"]) == (True, False)


QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("what_limits", {}),
    ("explain_request", {"request": "req-20"}),
    ("what_if", {"settings": ["max_num_seqs=20"], "scale_arrivals": 1.5}),
    ("advise", {"objectives": "ttft=60"}),
)


def test_texts_are_told_only_if_they_are_wanted(context: Context, path: str) -> None:
    for name, arguments in QUESTIONS:
        text = answers.as_text(ask(context, name, **arguments))
        assert PROMPT.strip() not in text
        assert OUTPUT.strip() not in text
    open_context = Context(RecordedSource(path), seconds=LONG, with_text=True)
    answer = ask(open_context, "explain_request", request="req-20")
    assert answer["prompt_text"].startswith(PROMPT)
    assert answer["output_text"].startswith(OUTPUT)
    assert max(len(answer["prompt_text"]), len(answer["output_text"])) <= 200


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("explain_request", {"request": "req-200"}, "no request 'req-200' is recorded; similar"),
        ("explain_request", {"request": "zz"}, "nor a similar id; the last is req-39"),
        ("explain_request", {}, "missing required field `request`"),
        ("explain_request", {"request": 7}, "Expected `str`"),
        ("what_if", {"settings": ["blocks=7"]}, "no setting 'blocks': there are block_size, "),
        ("what_if", {}, "nothing is changed: give settings"),
        ("what_if", {"settings": ["max_num_seqs=many"]}, "is a number or a change"),
        ("what_if", {"scale_arrivals": -1.0}, "scale_arrivals"),
        ("advise", {"objectives": "speed=1"}, "speed"),
        ("advise", {"objectives": " "}, "an objective is needed"),
        ("what_limits", {"when": 3}, "unknown field `when`"),
    ],
)
def test_a_question_without_an_answer_is_an_error_in_a_sentence(
    name: str, arguments: dict[str, Any], words: str, context: Context
) -> None:
    with pytest.raises(ToolError) as raised:
        ask(context, name, **arguments)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_client_s_name_of_a_request_is_known(tmp_path: Path) -> None:
    source, script = question_run()
    script.arrive("cmpl-one-0")
    script.step(decode=["early"])
    context = Context(RecordedSource(written(source, tmp_path)), seconds=LONG)
    assert ask(context, "explain_request", request="cmpl-one")["request"] == "cmpl-one-0"


@pytest.mark.parametrize(("name", "arguments"), QUESTIONS[2:])
def test_the_time_is_limited(name: str, arguments: dict[str, Any], path: str) -> None:
    context = Context(RecordedSource(path), seconds=1e-6)
    with pytest.raises(ToolError, match=r"^no (prediction|advice) within 1e-06 s; "):
        ask(context, name, **arguments)
    context.close()


def test_nobody_waits_for_a_cancelled_answer(context: Context) -> None:
    is_cancelled = threading.Event()
    is_cancelled.set()
    with pytest.raises(ToolError, match="no prediction"):
        call(TOOLS["what_if"], QUESTIONS[2][1], context, is_cancelled)


def test_advice_before_the_proof_is_the_best_so_far_and_not_proven(path: str) -> None:
    def end(_: Advice) -> None:
        raise TimeUpError

    advice = advise(Question(source=path), Slo(ttft=0.05), found=end)
    answer = answers.as_document(answers.advised(advice, 30.0))
    assert answer["is_best_so_far"]
    assert answer["is_proven"] is None
    assert answer["sentence"].startswith("the best so far, as the limit of 30 s was reached: ")
    assert "had not been repeated" in answer["notes"][0]


def test_a_recording_that_cannot_be_repeated_is_not_predicted_unless_it_is_wanted(
    tmp_path: Path,
) -> None:
    """Its settings are not those of the engine that made it."""
    path = tmp_path / "odd.seqtop"

    def change(event: Event) -> Event:
        if isinstance(event, EngineInfo):
            event.max_num_seqs = 4
        return event

    record_run(path, change)
    context = Context(RecordedSource(str(path)), seconds=LONG)
    answer = ask(context, "what_if", settings=["num_gpu_blocks=60"])
    assert not answer["is_proven"]
    assert answer["sentence"].startswith("no prediction, since the recording cannot be repeated")
    assert "the first difference is in" in answer["sentence"]
    assert answer["times"] == {}
    answer = ask(context, "what_if", settings=["num_gpu_blocks=60"], anyway=True)
    assert not answer["is_proven"]
    assert "cannot be repeated" in answer["notes"][0]
    assert answer["sentence"].startswith("PREDICTION, of no real run")
    answer = ask(context, "advise", objectives="ttft=50ms")
    assert answer["sentence"].startswith("no advice, since the recording cannot be repeated")
    assert answer["trials"] == []


HOSTILE = "\x1b[2J\u202e昔" + "火" * 1_000


def test_hostile_names_make_no_long_answer(tmp_path: Path) -> None:
    source, script = question_run()
    for number in range(6):
        script.arrive(f"{number}{HOSTILE}")
    script.step(decode=["early"])
    context = Context(RecordedSource(written(source, tmp_path)), seconds=LONG)
    text = answers.as_text(ask(context, "what_limits"))
    assert "\x1b" not in text
    assert "\u202e" not in text
    with pytest.raises(ToolError) as raised:
        ask(context, "explain_request", request="火火")
    assert len(str(raised.value)) <= 500


LONG_TEXT = HOSTILE * 4


def test_no_text_makes_an_answer_long() -> None:
    names: dict[str, list[Setting]] = {
        f"{number}{LONG_TEXT}": [LONG_TEXT, LONG_TEXT] for number in range(20)
    }
    rows = {f"{number}{LONG_TEXT}": [1e-300, 1e300, None] for number in range(20)}
    answer = answers.PredictionAnswer(
        sentence=LONG_TEXT,
        notes=[LONG_TEXT] * 20,
        is_proven=True,
        num_steps=10**18,
        num_equal_steps=10**18,
        settings=names,
        columns=["recorded", "model", "predicted"],
        decisions=rows,
        times=rows,
        is_guess=True,
        changed_requests=[LONG_TEXT] * 20,
    )
    document = answers.as_document(answer)
    assert len(answers.as_text(document).encode()) <= MAX_BYTES
    num_entries = sum(len(getattr(answer, name)) for name in answer.shortened)
    num_left = sum(len(document[name]) for name in answer.shortened)
    assert document["num_left_out"] == num_entries - num_left > 0
    assert document["sentence"].startswith("␛[2J")


@pytest.mark.parametrize("how", ["bad keyframe", "bad events", "cut"])
def test_a_damaged_recording_has_answers_or_errors(how: str, tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record_run(path)
    damage(path, how)
    context = Context(RecordedSource(str(path)), seconds=LONG)
    notes: list[str] = []
    for name, arguments in QUESTIONS:
        with contextlib.suppress(ToolError):
            notes += ask(context, name, **arguments)["notes"]
    if how == "cut":
        assert any("run.seqtop" in note for note in notes), "it is said"


def test_an_engine_is_asked_while_it_runs_and_after_its_end(endpoint: str) -> None:
    events = events_of(question_run()[0])
    assert isinstance(events[0], EngineInfo)
    info = replace(events[0], heartbeat_interval=1e6)  # its clock is not that of the script
    with (
        MessagePublisher(endpoint, info, EngineState()) as publisher,
        Session(endpoint) as session,
    ):
        context = Context(EngineSource(session, SECONDS), seconds=LONG)
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for event in events[1:]:
            publisher.publish(event)
        wait_until(lambda: session.state.num_finished == 1)  # the last one
        answer = ask(context, "what_limits")
        assert answer["is_live"]
        assert answer["sentence"] == of_last_minute(session.state).sentence
        assert answer["whole_run"]["sentence"] == of_whole(session.state).sentence
        explained = ask(context, "explain_request", request="late")
        assert {"seq_limit", "no_blocks"} <= {part["cause"] for part in explained["parts"]}
        publisher.close("time to go")
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        with pytest.raises(ToolError, match=r"is gone: time to go; its past can still"):
            ask(context, "what_limits")
        past = ask(context, "explain_request", request="late")
        assert past["parts"] == explained["parts"]
        assert "is gone: time to go" in past["notes"][0]


def test_an_engine_that_is_not_there_is_an_error(endpoint: str) -> None:
    with Session(endpoint) as session:
        context = Context(EngineSource(session, 0.0), seconds=LONG)
        for name, arguments in QUESTIONS:
            with pytest.raises(ToolError, match="no engine answered at"):
                ask(context, name, **arguments)
