"""Objectives: parsing, and the sequences that miss them."""

import math
from argparse import Action, _SubParsersAction
from collections.abc import Iterator
from typing import Any, cast

import pytest

from seqtop.cli.parser import build_parser
from seqtop.history import step_time
from seqtop.sequence import SequenceStatus
from seqtop.state.slo import (
    Objective,
    Slo,
    SloError,
    from_values,
    measured,
    missed,
    parse,
    parse_objective,
)
from seqtop.tui import settings
from tests.support.scripted import Script, ScriptedSource
from tests.support.simulated_engine import START


def test_an_awaited_token_can_be_late_already() -> None:
    script = Script(ScriptedSource())
    script.arrive("a")
    state = script.source.state
    asked = state.requests["a"], state.sequences[1]
    assert missed(Slo(ttft=1.0, e2e=5.0), *asked, START + 2) == {"ttft": 2.0}
    assert missed(Slo(), *asked, START + 9) == {}


def test_the_figures_of_a_request_are_measured_at_every_stage() -> None:
    script = Script(ScriptedSource())
    script.arrive("a")
    script.time = START + 2
    state = script.source.state

    def figures(now: float) -> dict[str, float | None]:
        return measured(state.requests["a"], state.sequences[1], START + now)

    waiting = {"ttft": 1.5, "itl": None, "tpot": None, "queue": 1.5, "e2e": 1.5}
    assert figures(1.5) == waiting
    script.step(prefill={"a": 40})
    assert figures(9) == pytest.approx(
        {"ttft": 2.05, "itl": None, "tpot": None, "queue": 2.0, "e2e": 9.0}
    )
    for _ in range(2):
        script.step()
    assert figures(9)["itl"] == pytest.approx(0.05)
    script.time = START + 4
    script.finish("a", SequenceStatus.FINISHED_STOPPED)
    assert figures(9) == pytest.approx(
        {"ttft": 2.05, "itl": 0.05, "tpot": 1.95 / 2, "queue": 2.0, "e2e": 4.0}
    )


def test_a_request_that_ended_without_a_token_waits_no_more() -> None:
    script = Script(ScriptedSource())
    script.arrive("a")
    script.time = START + 2
    script.finish("a", SequenceStatus.FINISHED_ABORTED)
    state = script.source.state
    figures = measured(state.requests["a"], state.sequences[1], START + 9)
    assert figures == {"ttft": None, "itl": None, "tpot": None, "queue": None, "e2e": 2.0}


def test_a_limit_that_is_just_met_is_not_missed() -> None:
    script = Script(ScriptedSource())
    script.arrive("a")
    asked = script.source.state.requests["a"], script.source.state.sequences[1]
    assert missed(Slo(queue=2.0), *asked, START + 2) == {}
    assert missed(Slo(queue=2.0), *asked, START + 2.5) == {"queue": 2.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft", "'ttft' is no objective; write FIGURE=TIME, such as ttft=500ms"),
        ("tftt=1", "no objective 'tftt': there are ttft, itl, tpot, queue, e2e"),
        ("ttft=fast", "ttft: 'fast' is not a time, such as 0.5 or 500ms"),
        ("ttft=-1", "ttft: '-1' is not a time, such as 0.5 or 500ms"),
        ("ttft=1, itl ", "'itl' is no objective; write FIGURE=TIME, such as ttft=500ms"),
        ("ttft=0", "ttft: '0' is not a time, such as 0.5 or 500ms"),
        ("ttft=5parsec", "ttft: no unit 'parsec': there are k, M, G, us, ms, s, m, h"),
    ],
)
def test_objectives_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(SloError) as refused:
        parse(text)
    assert str(refused.value) == said


def test_objectives_are_read() -> None:
    assert parse("ttft=0.5, itl=50ms,e2e=2m") == Slo(ttft=0.5, itl=0.05, e2e=120.0)
    assert parse("ttft=500ms itl = 50ms") == Slo(ttft=0.5, itl=0.05)
    assert parse("") == Slo()
    assert parse(" ttft = 1 ,, queue=2s,tpot=3") == Slo(ttft=1.0, queue=2.0, tpot=3.0)
    assert not Slo()
    assert Slo(e2e=1.0)
    assert from_values({"ttft": 1, "e2e": "2m"}) == Slo(ttft=1.0, e2e=120.0)
    for value in (0, math.inf, math.nan):
        with pytest.raises(SloError, match="is not a time"):
            from_values({"ttft": value})
    assert str(parse("ttft=0.5,itl=50ms")) == "TTFT ≤ 500 ms, ITL ≤ 50.0 ms"


def test_an_objective_has_a_percentile() -> None:
    slo = Slo(ttft=0.5, e2e=10.0)
    assert parse_objective("ttft=500ms,e2e=10s") == Objective(slo, 100.0)
    for text in ("ttft=500ms,e2e=10s,p=99", "p=99 ttft<500ms e2e<=10", "P = 99%, ttft=.5, e2e=10"):
        assert parse_objective(text) == Objective(slo, 99.0), text
    assert parse_objective("itl=1,p=99.9").percent == 99.9
    for text in ("p=99", "", " , "):
        with pytest.raises(SloError, match="an objective is needed"):
            parse_objective(text)
    for word in ("p=0", "p=-1", "p=101", "p=nan", "p=", "p", "p=x", "p<99"):
        with pytest.raises(SloError, match=f"'{word}' is no percentile; write p=99"):
            parse_objective(f"ttft=1,{word}")


def _options_with(name: str) -> Iterator[tuple[str, Action]]:
    (commands,) = (own for own in build_parser()._actions if isinstance(own, _SubParsersAction))
    for command, parser in commands.choices.items():
        for action in parser._actions:
            if name in action.option_strings:
                yield command, action


def test_all_options_take_objectives_with_spaces_or_commas() -> None:
    wanted = Slo(ttft=0.5, itl=0.05)
    commands = dict(_options_with("--slo"))
    assert {"advise", "attach", "explain", "record", "report", "whatif"} <= commands.keys()
    for text in ("ttft=500ms,itl=50ms", "ttft=500ms itl=50ms", " ttft = 0.5 , itl=50ms "):
        read = {name: cast(Any, it.type)(text) for name, it in commands.items()}
        assert read.pop("check") == Objective(wanted)
        assert read == dict.fromkeys(read, wanted)
        assert settings.parse_slo(text) == wanted, "in config.toml"
    times = {"prefill": 0.0001, "decode": 0.00002}
    for text in ("prefill=0.1ms,decode=20us", "prefill=0.1ms decode=20us"):
        assert step_time.parse(text) == pytest.approx(times)


@pytest.mark.parametrize(("text", "percent"), [("0.5", 0.5), ("1%", 1.0), ("100", 100.0)])
def test_a_percentile_is_above_zero_and_at_most_a_hundred(text: str, percent: float) -> None:
    assert parse_objective(f"ttft=0.5, p={text}") == Objective(Slo(ttft=0.5), percent)
    for wrong in ("0", "-1", "100.5", "nan"):
        with pytest.raises(SloError, match="is no percentile; write p=99"):
            parse_objective(f"ttft=0.5,p={wrong}")
