"""The parts of a request's time, read from recorded runs of the bundled engine."""

from collections import defaultdict

import pytest

from seqtop.explain.explanation import (
    Explanation,
    explain,
    find_request,
    find_request_of_client,
    request_ids,
    similar_ids,
)
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import RecordingError
from seqtop.sequence import SequenceStatus, latency
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support.events import wait_reason
from tests.support.random_runs import RandomRun
from tests.support.scripted import Script, ScriptedSource

MILLISECOND = 0.001


class Recorded:
    """Records what is published as a viewer does, after a trip over the wire."""

    def __init__(self) -> None:
        self.history, self.state = MemoryStore(), EngineState()
        self.num_messages = 0

    def publish(self, event: Event) -> None:
        payload = codec.encode(event)
        received = parsing.event(payload)
        self.state.apply(received)
        self.history.append(self.num_messages, payload, received, self.state)
        self.num_messages += 1

    def restart(self, event: Event) -> None:
        """Replaces the state by that of another run of the engine, which began with an event."""
        self.state = EngineState()
        self.state.apply(event)
        assert self.state.info is not None
        self.history.restore(self.state.info.incarnation, 0, self.state)
        self.num_messages = 1


@pytest.mark.parametrize(
    "seed",
    [0, 1, 2, *(pytest.param(n, marks=pytest.mark.release("many seeds")) for n in range(3, 50))],
)
def test_the_parts_add_up(seed: int) -> None:
    """To the TTFT, to the end-to-end latency, and to the waits that the state adds up by cause."""
    run, viewer = RandomRun(seed), Recorded()
    viewer.publish(run.info())
    for _ in run.steps(viewer):
        pass
    assert viewer.state.finished
    for request in viewer.state.requests.values():
        found_request = find_request(viewer.history, request.request_id)
        assert found_request is not None
        parts = explain(viewer.history, *found_request).parts()
        total = sum(part.seconds for part in parts)
        assert total == pytest.approx(latency.e2e_latency(request.metrics), abs=MILLISECOND)
        ttft = latency.ttft(request.metrics)
        if ttft is not None:
            before = sum(part.seconds for part in parts if part.before_first_token)
            assert before == pytest.approx(ttft, abs=MILLISECOND)
        assert not any(part.kind == "unknown" and part.cause != "in_progress" for part in parts)
        waits: defaultdict[str, float] = defaultdict(float)
        for part in parts:
            assert part.step is not None or not request.num_scheduled_steps
            if part.kind in ("queued", "preempted", "swapped"):
                waits[part.cause] += part.seconds
        assert sum(waits.values()) == pytest.approx(request.wait.total, abs=MILLISECOND)
        for cause, seconds in request.wait.by_cause.items():
            assert waits[cause] == pytest.approx(seconds, abs=MILLISECOND), cause
        if len(request.seq_ids) == 1 and not request.num_preemptions and ttft is not None:
            sequence = viewer.state.sequences[request.seq_ids[0]]
            computed = {
                kind: sum(part.num_tokens for part in parts if part.kind == kind)
                for kind in ("prefill", "decode")
            }
            assert computed["prefill"] == request.num_prompt_tokens - sequence.num_prompt_hits
            assert computed["prefill"] + computed["decode"] == (
                sequence.num_computed_tokens - sequence.num_prompt_hits
            )


def test_a_request_that_the_last_state_lacks_is_found_before() -> None:
    source = ScriptedSource(max_finished=1)
    script, history = Script(source), source.history
    for name in ("dropped", "other", "lost", "last"):
        script.arrive(name, pieces=["RequestFinished "])  # it only looks like its end
        script.step(prefill={name: 40}, decode=[])
        if name == "lost":
            position = history.last
            state = EngineState(info=source.state.info, time=script.time)
            source.replace(state, num_missed=3)
        else:
            script.step(stop={name: SequenceStatus.FINISHED_STOPPED})
    assert list(source.state.requests) == ["last"]
    found_request = find_request(history, "dropped")
    assert found_request is not None
    request, end = found_request
    assert (request.request_id, request.finish_reason) == ("dropped", "stop")
    assert end < position
    assert explain(history, *found_request).finish_reason == "stop"
    found_request = find_request(history, "lost")
    assert found_request is not None
    assert (found_request[0].finish_reason, found_request[1]) == (None, position)
    assert find_request(history, "unknown") is None


def test_a_request_as_it_arrived_is_explained_as_it_has_become() -> None:
    script = Script(ScriptedSource())
    script.arrive("a")
    script.step(prefill={"a": 40})
    script.step()
    found = find_request(script.source.history, "a")
    assert found is not None
    assert found[0].metrics.first_token_time is None
    explanation = explain(script.source.history, *found)
    assert explanation.metrics == script.source.state.requests["a"].metrics
    assert [part.before_first_token for part in explanation.parts()] == [True, True, False]


def test_requests_are_found_by_the_ids_of_clients_and_by_similar_ones() -> None:
    script = Script(ScriptedSource())
    for name in ("cmpl-1-0", "other-0", "other"):
        script.arrive(name)
    state = script.source.state
    script.source.replace(state, num_missed=3)
    script.arrive("last")
    history = script.source.history
    assert request_ids(history) == ["last", "other", "other-0", "cmpl-1-0"]
    for name, found in (
        ("cmpl-1", "cmpl-1-0"), ("cmpl-1-0", "cmpl-1-0"), ("other", "other"), ("oth", None),
        ("cmpl-1-0-0", None),
    ):  # fmt: skip
        request = find_request_of_client(history, name)
        assert (request and request[0].request_id) == found, name


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("req-10", ["req-1", "req-11", "req-2"]),
        ("CHAT", ["chat-of-a-long-name"]),
        ("q-2", ["req-2"]),
        ("nothing", []),
    ],
)
def test_ids_that_are_like_another(word: str, expected: list[str]) -> None:
    assert similar_ids(word, ["chat-of-a-long-name", "req-2", "req-1", "req-11"]) == expected


@pytest.mark.parametrize("seed", [2, 5, 9])
def test_an_explanation_is_extended(seed: int) -> None:
    """One that grows with the run is equal to one that is read at once."""
    run, viewer = RandomRun(seed), Recorded()
    viewer.publish(run.info())
    kept: dict[str, Explanation] = {}
    num_extended = num_slices = 0
    for number, _ in enumerate(run.steps(viewer)):
        if number % 3:
            continue
        position = viewer.history.last
        for request in viewer.state.requests.values():
            explanation = kept.get(request.request_id)
            if explanation is not None and explanation.extend(request, position):
                num_extended += 1
            else:
                explanation = kept[request.request_id] = Explanation(
                    viewer.history, request, position
                )
            while explanation.advance(0.0):
                num_slices += 1
            assert not explanation.error
            assert explanation.parts() == explain(viewer.history, request, position).parts()
            assert explanation.now == viewer.state.time
    assert num_extended > 20
    assert num_slices > num_extended, "no time is one message at once"


def test_an_explanation_ends_at_a_message_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if a holder of blocks is to be looked up for a wait before that message."""
    source = ScriptedSource()
    script, history = Script(source), source.history
    script.arrive("long")
    script.step(prefill={"long": 40})
    script.arrive("short")
    for _ in range(4):
        script.step(decode=["long"], waits=[wait_reason("short", "no_blocks", 3)])
    broken, read_event = history.last - 1, history._event

    def event(position: int, payload: bytes) -> Event:
        if position == broken:
            raise RecordingError("it is broken")
        return read_event(position, payload)

    monkeypatch.setattr(history, "_event", event)
    explanation = Explanation(history, source.state.requests["short"], history.last)
    for _ in range(3 * history.last):
        if not explanation.advance(0.0):
            break
    assert explanation.is_complete
    assert "it is broken" in explanation.error
    assert [part.cause for part in explanation.parts()][-2:] == ["no_blocks", "in_progress"]
