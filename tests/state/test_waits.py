"""The seconds that requests waited are kept, with the cause where the engine gave one."""

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, Span
from seqtop.state.fields import FIELDS
from seqtop.state.ordering import SequenceView
from seqtop.state.status_sentence import describe_waits, status_sentence
from seqtop.state.wait_causes import OUTSIDE_STEPS
from seqtop.state.waits import wait_until
from seqtop.wire import codec, parsing
from seqtop.wire.messages import SequenceUpdate, WaitCause
from seqtop.wire.snapshot import WaitTimes
from tests.support import events
from tests.support.questions import question_run
from tests.support.recordings import encoded
from tests.support.reducer_events import arrived, step
from tests.support.scripted import STEP_TIME, Script, ScriptedSource

WAITS = {"queued", "preempted", "swapped"}


def reasons(wait: WaitTimes) -> dict[str, float]:
    """The seconds of a wait by the causes that an engine gave for a step."""
    return {cause: wait.by_cause[cause] for cause in wait.by_cause if cause not in OUTSIDE_STEPS}


def test_a_wait_is_told_by_its_causes_after_it_has_ended() -> None:
    source, _ = question_run()
    late, last = (source.state.requests[name] for name in ("late", "last"))
    assert reasons(late.wait) == pytest.approx({"seq_limit": 3.0, "no_blocks": 2.0}, abs=0.06)
    assert late.wait.total == pytest.approx(5.0, abs=0.06)
    assert late.wait.named == pytest.approx(5.0, abs=0.06)
    sequence = source.state.sequences[late.seq_ids[0]]
    view = SequenceView()
    view.rebuild(source.state)
    assert "Waited 5.00 s (max_num_seqs 3.00 s, no free blocks 2.00 s)." in status_sentence(
        source.state, view, sequence
    )
    assert FIELDS["waited"].value(late, sequence, source.state.time) == late.wait.total
    assert FIELDS["why"].value(late, sequence, source.state.time) == "seqs"
    # It still waits, behind the first one, and then for reasons that are not given.
    waiting = wait_until(source.state, last, source.state.time)
    assert reasons(waiting) == pytest.approx({"seq_limit": 3.0, "no_blocks": 2.0}, abs=0.06)
    assert waiting.total == pytest.approx(8.9, abs=0.06)
    sentence = describe_waits(source.state, last)
    assert "max_num_seqs 3.00 s" in sentence
    assert sentence.endswith("), 5.00 s of it behind others.")


def test_waits_are_as_long_as_the_spans_of_a_request() -> None:
    for seed in range(5):
        state = EngineState()
        for payload in encoded(seed, 80, num_blocks=24):
            state.apply(parsing.event(payload))
            for request in state.requests.values():
                wait = wait_until(state, request, state.time)
                spans = sum(_length(span, state.time) for span in request.spans)
                assert wait.total == pytest.approx(spans)
                assert sum(wait.by_cause.values()) <= wait.total + 1e-6
                assert (wait.since is None) == (request.spans[-1].kind not in WAITS
                                                or request.spans[-1].end is not None)  # fmt: skip


def _length(span: Span, now: float) -> float:
    if span.kind not in WAITS:
        return 0.0
    return max((now if span.end is None else span.end) - span.start, 0.0)


def test_a_wait_after_a_preemption_is_added() -> None:
    script = Script(ScriptedSource())
    script.arrive("victim")
    script.arrive("other")
    script.step(prefill={"victim": 40, "other": 40})
    first = script.source.state.requests["victim"].wait.total
    blocks = [events.wait_reason("victim", "no_blocks", 2)]
    script.step(preempt={"victim": "other"}, waits=blocks)
    for _ in range(9):
        script.step(decode=["other"], waits=blocks)
    script.step(prefill={"victim": 41}, decode=["other"])
    wait = script.source.state.requests["victim"].wait
    assert wait.total == pytest.approx(first + 0.5)
    assert reasons(wait) == pytest.approx({"no_blocks": 0.5})
    assert wait.since is None


def test_an_engines_own_name_is_a_cause() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("remote")
    state = source.state
    request = state.requests["remote"]
    for number in range(3):
        update = events.update(
            request.seq_ids[0],
            SequenceStatus.WAITING,
            0,
            engine_status="WAITING_FOR_REMOTE_KVS" if number < 2 else "",
        )
        script.step()
        _update(script, update)
    script.step(prefill={"remote": 40})
    assert request.wait.by_cause["WAITING_FOR_REMOTE_KVS"] > 0.1
    word = FIELDS["why"].value(request, state.sequences[request.seq_ids[0]], state.time)
    assert word == "waiting_for_remote_kvs"


def _update(script: Script, update: SequenceUpdate) -> None:
    """Applies one more step that only changes a sequence."""
    last = script.source.state.stats
    assert last is not None

    start, script.time = script.time, script.time + 0.05
    script.source.apply(
        events.step(
            script.number,
            start_time=start,
            time=script.time,
            sequences=[update],
            stats=last,
        )
    )
    script.number += 1


def test_an_engine_that_invents_names_fills_no_memory() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("busy")
    request = source.state.requests["busy"]
    for number in range(48):
        _step_with_status(script, request.seq_ids[0], f"NAME_{number}")
    names = [f"NAME_{number}" for number in range(15)]
    assert list(request.wait.by_cause) == ["between_steps", *names, "other"]
    assert sum(request.wait.by_cause.values()) <= request.wait.total + 1e-9


def _step_with_status(script: Script, seq_id: int, name: str) -> None:
    if script.source.state.stats is None:
        script.step()
    _update(
        script,
        events.update(seq_id, SequenceStatus.WAITING, 0, engine_status=name),
    )


@pytest.mark.parametrize(
    ("cause", "by_cause"),
    [("lora_slots", {"lora_slots": 2.0}), ("no_blocks", {"no_blocks": 2.0}), ("unknown", {})],
)
def test_a_request_that_is_passed_over_waits_for_what_is_said_of_it(
    cause: WaitCause, by_cause: dict[str, float]
) -> None:
    """The head of the queue and those behind it wait for something else."""
    state = EngineState()
    for seq_id, name in enumerate(("passed", "head", "behind")):
        state.apply(arrived(name, seq_id, time=20.0))
    reasons = [
        events.wait_reason("passed", cause),
        events.wait_reason("head", "no_blocks"),
    ]
    for number in range(2):  # a request that is named twice counts once
        state.apply(step(number, wait_reasons=reasons * 2))
    state.apply(step(2))
    waits = {
        name: wait_until(state, request, state.time) for name, request in state.requests.items()
    }
    passed = {key: seconds for key, seconds in waits["passed"].by_cause.items() if seconds}
    assert passed == by_cause
    assert waits["head"].by_cause == waits["behind"].by_cause == {"no_blocks": 2.0}
    assert [wait.named for wait in waits.values()] == [2.0, 2.0, 0.0]
    assert [wait.between for wait in waits.values()] == [1.0] * 3
    assert [wait.total for wait in waits.values()] == [2.5] * 3


def test_steps_without_a_length_add_no_causes() -> None:
    state = EngineState()
    state.apply(arrived("a", 1, time=20.0))
    reason = events.wait_reason("a", "lora_slots")
    for _ in range(2):
        state.apply(step(0, wait_reasons=[reason], time=20.0))
    assert wait_until(state, state.requests["a"], 20.0).by_cause == {}


def test_waits_survive_a_snapshot() -> None:
    source, _ = question_run()
    copy = codec.decode(codec.encode(source.state), EngineState)
    for request_id, request in source.state.requests.items():
        assert copy.requests[request_id].wait == request.wait
    assert copy.blocked == source.state.blocked


def test_prompt_hits_never_exceed_the_prompt() -> None:
    source, script = question_run()
    twin = source.state.sequences[2]
    assert (twin.num_prompt_hits, twin.num_prompt_tokens) == (32, 40)
    share = FIELDS["hit"].value(source.state.requests["twin"], twin, 0.0)
    assert share == pytest.approx(0.8)
    # Preempted and admitted again, it finds more than its prompt: its own blocks.
    script.step(preempt={"twin": "early"})
    actor = script.actors["twin"]
    actor.cached = actor.computed = 96
    script.step(prefill={"twin": 1})
    assert twin.num_cached_tokens == 96
    assert FIELDS["cached"].value(source.state.requests["twin"], twin, 0.0) == 32
    for seed in range(4):
        state = EngineState()
        for payload in encoded(seed, 80, num_blocks=24):
            state.apply(parsing.event(payload))
        for sequence in state.sequences.values():
            assert 0 <= sequence.num_prompt_hits <= sequence.num_prompt_tokens


def test_time_between_steps_belongs_to_what_a_request_waits_for() -> None:
    """The pace of the engine and a pause of the host delay only those that run."""
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs", num_prompt=40)
    script.arrive("waits", num_prompt=40)
    script.step(prefill={"runs": 40}, waits=[events.wait_reason("waits", "seq_limit")])
    script.paced_time = 0.3
    script.time += 0.2
    script.arrive("late", num_prompt=40)  # takes 2 ms
    script.time += 0.298
    script.step(decode=["runs"], waits=[events.wait_reason("waits", "seq_limit")])
    for name, between in (("waits", 0.502), ("late", 0.3)):
        wait = wait_until(source.state, source.state.requests[name], source.state.time)
        seconds = {cause: value for cause, value in wait.by_cause.items() if value > 0.01}
        length = between + STEP_TIME * (2 if name == "waits" else 1)
        assert seconds == pytest.approx({"seq_limit": length - 0.002 * (name == "waits")}, abs=1e-5)
        assert wait.between == pytest.approx(between, abs=1e-5), name
    assert "max_num_seqs 600 ms" in describe_waits(source.state, source.state.requests["waits"])
