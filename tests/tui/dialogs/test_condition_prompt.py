"""Going to where a condition begins to hold."""

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from seqtop.state.condition import parse_condition
from seqtop.state.filter import parse
from seqtop.tui import condition_finder
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.condition_prompt import EXAMPLES, ConditionPrompt
from tests.support.piloting import play, screen, selected, until


async def searched(app: SeqtopApp, pilot: Pilot[int]) -> None:
    await until(pilot, lambda: app.ui.condition_finder.search is None)
    app.draw()
    await pilot.pause()


async def choose(app: SeqtopApp, pilot: Pilot[int], text: str) -> None:
    await pilot.press("semicolon")
    app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await searched(app, pilot)


def test_back_and_forward(live: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        assert "Next match" not in screen(live)
        await choose(live, pilot, "status:preempted request:req-7")
        preempted = live.ui.state.step
        assert live.ui.state.requests["req-7"].preemption_steps == [preempted]
        assert selected(live) == "req-7"
        text = " ".join(screen(live).split())
        assert "status:preempted request:req-7 begins here." in text
        assert "u Match before U Next match" in text
        await pilot.press("u")
        await searched(live, pilot)
        nothing = "Nothing matches status:preempted request:req-7"
        assert f"{nothing} before this moment." in " ".join(screen(live).split())
        await pilot.press("0", "U")
        await searched(live, pilot)
        assert live.ui.state.step == preempted
        await pilot.press("U")
        await searched(live, pilot)
        assert f"{nothing} after this moment." in " ".join(screen(live).split())
        assert live.ui.state.step == preempted

    play(live, act, (160, 40))


def test_an_invalid_condition_is_refused(live: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("U")  # without a condition, the key asks for one
        assert isinstance(live.screen, ConditionPrompt)
        await pilot.press(*"kv", "greater_than_sign", "enter")
        await pilot.pause()
        assert "Kv> needs a number." in screen(live)
        assert "of sequences: the filter's words" in " ".join(screen(live).split())
        await pilot.press("escape")
        assert live.ui.condition_finder.condition == ""

    play(live, act, (120, 30))


def test_escape_ends_a_search_and_nothing_else(
    live: SeqtopApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_finder, "READ_SECONDS", 0.0)  # one event a frame

    async def act(pilot: Pilot[int]) -> None:
        live.ui.filter_by(parse("req"))
        live.ui.condition_finder.condition = "status:swapped"
        live.action_repeat_seek(-1)
        await until(pilot, lambda: "Searching for status:swapped: step" in screen(live))
        assert live.ui.condition_finder.search is not None
        await pilot.press("escape")
        assert live.ui.condition_finder.search is None
        assert live.ui.view.filter.source == "req"
        assert not live.ui.paused
        await until(pilot, lambda: "Searching" not in screen(live))

    play(live, act, (120, 30))


@pytest.mark.parametrize("example", [example for example, _ in EXAMPLES])
def test_every_example_is_understood(example: str) -> None:
    assert parse_condition(example).source == example
