"""A condition as a gate finds what evaluating it at every position finds."""

import pytest

from seqtop.checks.background import BackgroundChecker
from seqtop.checks.gate import Gate, Outcome
from seqtop.gates.condition_gate import ConditionGate
from seqtop.state import EngineState
from seqtop.state.condition import parse_condition
from seqtop.state.filter import FilterError
from seqtop.wire.messages import EngineStopped, Event, Step
from tests.support.events import arrival, engine_info, stats, step
from tests.support.random_engine import RandomEngine
from tests.support.scripted import ScriptedSource

CONDITIONS = (
    "kv>60%",
    "preemptions>0",
    "preemptions >= 3, kv > 50%",
    "status:preempt",
    "waiting>=3 status:running",
    "kv>40% -status:running",
    "age>200ms",
    "waited>400ms -status:running",
    "queue>100ms",
    "fox",
    "waiting>100000",
)


def outcomes(source: ScriptedSource, *gates: Gate) -> list[Outcome]:
    """The outcomes of gates on the events of a source."""
    checker = BackgroundChecker(source.history, stored="first", gates=gates)
    checker.replay.run()
    return [outcome for gate in gates for outcome in gate.outcomes()]


def outcome(condition: str, *events: Event) -> Outcome:
    (found,) = outcomes(ScriptedSource(*events), ConditionGate(condition))
    return found


def with_gap(seed: int) -> ScriptedSource:
    """A random run with a gap."""
    source = ScriptedSource()
    events = [*RandomEngine(seed, 60, num_blocks=24)]
    for event in events[: len(events) // 2]:
        source.apply(event)
    source.replace(source.state, num_missed=3)
    for event in events[len(events) // 2 :]:
        source.apply(event)
    return source


@pytest.fixture(scope="module", params=range(3))
def run(request: pytest.FixtureRequest) -> tuple[ScriptedSource, dict[int, EngineState]]:
    """A random run with a gap, and its state at each position."""
    source = with_gap(request.param)
    history = source.history
    positions = range(history.first, history.last + 1)
    return source, {position: history.at(position) for position in positions}


@pytest.mark.parametrize("text", CONDITIONS)
def test_it_finds_what_evaluating_every_position_finds(
    text: str, run: tuple[ScriptedSource, dict[int, EngineState]]
) -> None:
    source, states = run
    history = source.history
    events = dict(history.events(history.first, history.last))
    first, requests, seconds, num_held, num_steps = None, [], 0.0, 0, 0
    held_at = None
    for position, state in states.items():
        condition, ids = parse_condition(text), [-1]
        if condition.filter is not None:
            ids = [seq_id for seq_id in state.sequences if condition.matches(state, seq_id)]
        holds = bool(ids) and condition.holds_for_engine(state)
        event = events.get(position)
        if held_at is not None and event is not None:
            seconds += state.time - held_at
        held_at = state.time if holds else None
        num_steps += isinstance(event, Step)
        if holds:
            num_held += isinstance(event, Step)
            first = state.step if first is None else first
            requests += [state.sequences[seq_id].request_id for seq_id in ids if seq_id >= 0]
    (found,) = outcomes(source, ConditionGate(text))
    if first is None:
        assert (found.result, found.message) == ("met", f"never held in {num_steps} steps")
        return
    gate = ConditionGate(text)
    assert outcomes(source, gate) == [found]
    assert (found.result, found.step, found.gate) == ("missed", first, text)
    assert gate._seconds == pytest.approx(seconds)
    assert (gate._num_held, gate._num_steps) == (num_held, num_steps)
    assert {*gate._matched} == {*requests}
    assert f"after {num_held} of {num_steps} steps" in found.message


def test_the_condition_of_a_whole_run_is_that_of_its_end() -> None:
    steps = [step(number, stats=stats(num_preemptions=number // 2)) for number in range(4)]
    found = outcome("preemptions > 0", engine_info(), arrival(1), *steps)
    assert (found.result, found.step, found.request_id) == ("missed", 2, None)
    assert found.message.startswith("begins to hold here; it held after 2 of 4 steps, for ")
    assert outcome("preemptions>1", engine_info(), *steps).result == "met"


def test_a_condition_that_held_before_says_so() -> None:
    state = EngineState()
    for event in (engine_info(), step(0, stats=stats(num_preemptions=7))):
        state.apply(event)
    gate, later = ConditionGate("preemptions>0"), step(1, stats=stats(num_preemptions=7))
    gate.start(0, state)
    gate.apply(1, later, [*state.apply(later)])
    (found,) = gate.outcomes()
    assert (found.result, found.step) == ("missed", 0)
    assert found.message.startswith("held when the run began; it held after 1 of 1 step, for ")


def test_a_figure_that_an_engine_does_not_tell_is_unknown() -> None:
    blind = engine_info(num_gpu_blocks=0, not_available={"hit": "no prefix cache"})
    found = outcome("kv>1% hit>50%", blind, arrival(1), step(0))
    assert (found.result, found.message) == ("unknown", "the engine does not tell kv, hit")
    assert outcome("running>=0", blind, step(0)).result == "missed"
    nothing = outcome("running>=0", blind, EngineStopped(time=1.0))
    assert nothing.result == "unknown", "without a step nothing is known of the engine"


def test_nothing_is_known_of_an_engine_that_cannot_be_observed() -> None:
    found = outcome("waited>1s", engine_info(not_available={"requests": "no scheduler"}), step(0))
    assert (found.result, found.message) == ("unknown", "the engine does not tell waited")


def test_texts_that_were_not_searched_are_named() -> None:
    events = arrival(1), step(0)
    found = outcome("secret", engine_info(redacted=True), *events)
    assert found.result == "met"
    assert found.message.endswith("; the texts are redacted, so that only ids were searched")
    assert outcome("req-1", engine_info(redacted=True), *events).result == "missed"


def test_an_invalid_condition_is_refused() -> None:
    with pytest.raises(FilterError, match="no field 'preemption'"):
        ConditionGate("preemption>0")
