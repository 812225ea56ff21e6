"""Going to where a condition begins to hold."""

import pytest
from textual.widgets import Input

from seqtop.state.condition import parse_condition
from seqtop.state.filter import parse
from seqtop.tui import condition_finder
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.condition_prompt import EXAMPLES, ConditionPrompt
from tests.support.piloting import Pilot, play, screen, selected, until, words


def searched(app: SeqtopApp, pilot: Pilot) -> None:
    until(pilot, lambda: app.ui.condition_finder.search is None)
    pilot.draw()


def choose(app: SeqtopApp, pilot: Pilot, text: str) -> None:
    pilot.press("semicolon")
    app.screen.query_one(Input).value = text
    pilot.press("enter")
    searched(app, pilot)


def test_back_and_forward(live: SeqtopApp) -> None:
    with play(live, (160, 40)) as pilot:
        assert "Next match" not in screen(live)
        choose(live, pilot, "status:preempted request:req-7")
        preempted = live.ui.state.step
        assert live.ui.state.requests["req-7"].preemption_steps == [preempted]
        assert selected(live) == "req-7"
        text = words(live)
        assert "status:preempted request:req-7 begins here." in text
        assert "u Match before U Next match" in text
        pilot.press("u")
        searched(live, pilot)
        nothing = "Nothing matches status:preempted request:req-7"
        assert f"{nothing} before this moment." in words(live)
        pilot.press("0", "U")
        searched(live, pilot)
        assert live.ui.state.step == preempted
        pilot.press("U")
        searched(live, pilot)
        assert f"{nothing} after this moment." in words(live)
        assert live.ui.state.step == preempted


def test_an_invalid_condition_is_refused(live: SeqtopApp) -> None:
    with play(live, (120, 30)) as pilot:
        pilot.press("U")  # without a condition, the key asks for one
        assert isinstance(live.screen, ConditionPrompt)
        pilot.press(*"kv", "greater_than_sign", "enter")
        assert "Kv> needs a number." in screen(live)
        assert "of sequences: the filter's words" in words(live)
        pilot.press("escape")
        assert live.ui.condition_finder.condition == ""


def test_escape_ends_a_search_and_nothing_else(
    live: SeqtopApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_finder, "READ_SECONDS", 0.0)  # one event a frame
    with play(live, (120, 30)) as pilot:
        live.ui.filter_by(parse("req"))
        live.ui.condition_finder.condition = "status:swapped"
        live.action_repeat_seek(-1)
        until(pilot, lambda: "Searching for status:swapped: step" in screen(live))
        assert live.ui.condition_finder.search is not None
        pilot.press("escape")
        assert live.ui.condition_finder.search is None
        assert live.ui.view.filter.source == "req"
        assert not live.ui.paused
        until(pilot, lambda: "Searching" not in screen(live))


@pytest.mark.parametrize("example", [example for example, _ in EXAMPLES])
def test_every_example_is_understood(example: str) -> None:
    assert parse_condition(example).source == example
