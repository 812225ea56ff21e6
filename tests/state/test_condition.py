"""Conditions on a moment."""

from pathlib import Path

import msgspec
import pytest

from seqtop.state import EngineState
from seqtop.state.condition import ENGINE_FIELDS, parse_condition
from seqtop.state.filter import FilterError, parse
from tests.support.reducer_events import STATS
from tests.support.scripted import ScriptedSource, engine_info, scene


@pytest.fixture(scope="module")
def state() -> EngineState:
    source = ScriptedSource()
    scene(source)
    return source.state


def holds(source: str, state: EngineState) -> bool:
    condition = parse_condition(source)
    if not condition.holds_for_engine(state):
        return False
    if condition.filter is None:
        return True
    return any(condition.matches(state, seq_id) for seq_id in state.sequences)


def test_the_use_of_the_pool_is_a_share(state: EngineState) -> None:
    assert state.stats is not None
    used = state.stats.num_used_blocks / 256
    for text in (
        f"kv>{used - 0.01:.4f}",
        f"KV>{100 * used - 1:.2f}%",
        f"kv<={100 * used + 1:.2f}%",
    ):
        assert holds(text, state), text
        assert not holds(f"-{text}", state), text
    assert not holds("kv>95%", state)


@pytest.mark.parametrize("name", [*ENGINE_FIELDS])
def test_every_figure_of_the_engine_can_be_compared(name: str, state: EngineState) -> None:
    assert state.stats is not None
    assert state.info is not None
    value = ENGINE_FIELDS[name].value(state.stats, state.info)
    assert holds(f"{name}>=0", state) == (value is not None)
    assert not holds(f"{name}<0", state)
    assert not holds(f"{name}>=0", EngineState()), "before the first step nothing is known"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv", 0.25), ("running", 3), ("waiting", 4), ("swapped", 5), ("free", 6),
        ("prefill", 7), ("decode", 8), ("preemptions", 9),
    ],
)  # fmt: skip
def test_each_word_reads_its_figure(name: str, value: float) -> None:
    figures = msgspec.structs.replace(
        STATS, num_used_blocks=64, num_running=3, num_waiting=4, num_swapped=5,
        num_free_blocks=6, num_prefill_tokens=7, num_decode_tokens=8,
        num_preemptions=9,
    )  # fmt: skip
    state = EngineState(info=engine_info(num_gpu_blocks=256), stats=figures)
    assert holds(f"{name}={value}", state)
    assert not holds(f"-{name}={value}", state)
    assert not holds(f"{name}>{value}", state)
    assert holds(f"-{name}>{value}", state)


def test_the_use_of_an_unknown_pool_is_unknown() -> None:
    state = EngineState(info=engine_info(num_gpu_blocks=0), stats=STATS)
    assert not holds("kv>=0", state)
    assert not holds("-kv>=0", state)
    assert not holds("running>=0", EngineState(info=engine_info()))
    assert not holds("running>=0", EngineState(stats=STATS))


def test_a_word_without_a_field_is_one_of_the_filter(state: EngineState) -> None:
    assert holds("req-7", state)
    assert holds("req-7 running>0", state)
    assert not holds("req-77", state)
    assert parse_condition("  req-7 ").source == "req-7"


def test_the_fields_that_are_read_are_named() -> None:
    condition = parse_condition("kv>95% Waiting>1 prompt > 1k, pre>0 -status:stop req-7")
    assert condition.engine_fields == ("kv", "waiting")
    assert condition.filter is not None
    assert condition.filter.fields == ("prompt", "preempt", "status")


def test_only_a_sequence_that_is_there_matches(state: EngineState) -> None:
    assert not parse_condition("-req-7").matches(state, 999)
    assert not any(
        parse_condition("running>0").matches(state, seq_id) for seq_id in state.sequences
    )


def test_both_kinds_of_words_have_to_hold(state: EngineState) -> None:
    assert holds("status:preempt request:req-7", state)
    assert holds("status:preempted request=req-7 kv<95%", state)
    assert not holds("status:preempted request:req-1", state)
    assert not holds("status:preempt kv>95%", state)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "a condition is needed"),
        ("kv>", "kv> needs a number"),
        ("kv:high", "kv: needs a number"),
        ("kv>95x", "no unit 'x'"),
        ("running>50%", "running> needs a number"),
        ("runing>3", "no field 'runing'"),
        ("status:blue", "no status 'blue'"),
    ],
)
def test_invalid_conditions(source: str, reason: str) -> None:
    with pytest.raises(FilterError, match=reason):
        parse_condition(source)


def test_shares_of_a_filter_take_percent(state: EngineState) -> None:
    request = state.requests["req-2"]
    sequence = state.sequences[request.seq_ids[0]]
    assert parse("hit>60%").matches(request, sequence, state.time)
    assert not parse("hit>70%").matches(request, sequence, state.time)


def test_the_document_lists_every_figure_of_the_engine() -> None:
    text = (Path(__file__).parents[2] / "docs" / "screens.md").read_text()
    for name in ENGINE_FIELDS:
        assert f"| `{name}` |" in text
