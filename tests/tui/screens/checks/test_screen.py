"""The checks screen, and going from failed check to failed check."""

from collections import Counter

import pytest
from textual.pilot import Pilot

from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.checks.findings import Findings
from seqtop.tui.screens.checks.screen import ChecksScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire import codec, parsing
from tests.support.event_script import EventScript
from tests.support.piloting import SCREENS, checked, play, screen, until
from tests.support.scripted import HOSTILE, Script, ScriptedSource, scene

KEY = str(SCREENS.index(ChecksScreen) + 1)


def recorded() -> ScriptedSource:
    """A scene in which nine checks fail, kept on record."""
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile=HOSTILE.replace("\ud800", ""), max_num_batched_tokens=200)
    return source


@pytest.fixture
def app() -> SeqtopApp:
    return SeqtopApp(recorded(), clock=lambda: 0.0)


def words(app: SeqtopApp) -> str:
    return " ".join(screen(app).split())


def found(app: SeqtopApp) -> list[tuple[int, str]]:
    assert app.ui.checker is not None
    return [(each.position, each.finding.rule) for each in app.ui.checker.found()]


def test_nothing_is_checked_until_somebody_asks(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "1")
        assert app.ui.checker is None
        await pilot.press(KEY)
        await pilot.pause()
        assert isinstance(app.screen, ChecksScreen)
        await checked(app, pilot)
        text = words(app)
        assert "17 rules 41 steps 9 findings" in text
        assert "budget 7 block-leak 2 the other 15 hold" in text
        assert "18 blocks are in use, the block tables name 16." in text
        await pilot.press("1")
        await pilot.pause()
        assert "checks: 9" in words(app)

    play(app, act, (100, 24))


def test_an_orderly_engine_has_no_findings_and_one_is_told_what_was_checked() -> None:
    source = ScriptedSource(history=MemoryStore())
    script = Script(source)
    script.arrive("one")
    script.step(prefill={"one": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)
        assert "17 rules, 1 step checked, nothing found." in words(app)
        assert not app.screen.query_one(Findings).display
        assert "checks:" not in screen(app)
        await pilot.press("enter", "down")
        script.info.max_num_batched_tokens = 0
        source.apply(script.info)
        script.step()
        await until(pilot, lambda: bool(app.ui.checker and app.ui.checker.num_findings))
        await checked(app, pilot)
        assert "1 tokens were computed, the budget is 0." in words(app)
        assert "checks: 1" in words(app)

    play(app, act, (100, 24))


def test_enter_goes_to_the_moment_its_sequence_selected() -> None:
    payloads = [codec.encode(event) for event in EventScript(11, 60, num_blocks=24)]
    source = ScriptedSource(*(parsing.event(each) for each in payloads), history=MemoryStore())
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)
        assert app.ui.checker is not None
        of_request = [each for each in app.ui.checker.found() if each.finding.request_id]
        wanted = of_request[0]
        await pilot.press("home", *["down"] * (wanted.number - 1), "enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.time_travel.position == wanted.position
        assert app.ui.state.step == wanted.finding.step
        assert app.ui.selected == wanted.finding.seq_id
        assert f"Check {wanted.finding.rule} failed of {wanted.finding.request_id}" in words(app)
        assert "‖ PAUSED" in screen(app)
        await pilot.press(KEY)
        await pilot.pause()
        selected = app.screen.query_one(Findings).selected
        assert selected is not None
        assert selected.number == wanted.number
        with_block = next(each for each in app.ui.checker.found() if each.finding.block)
        await pilot.press("home", *["down"] * (with_block.number - 1), "enter")
        await pilot.pause()
        assert app.ui.block == with_block.finding.block

    play(app, act, (160, 40))


def test_from_failed_check_to_failed_check(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)
        places = list(dict(found(app)))
        for screen_key in ("1", "2"):
            await pilot.press(screen_key, "L")
            for place in reversed(places):
                await pilot.press("v")
                assert app.ui.time_travel.position == place
                assert app.ui.paused
            await pilot.press("v")
            assert app.ui.time_travel.position == places[0]
            assert "No failed check before this moment: 41 steps checked." in [
                notice.message for notice in app._notifications
            ]
            for place in places[1:]:
                await pilot.press("V")
                assert app.ui.time_travel.position == place
            await pilot.pause()
            last = app.ui.checker.found()[-1] if app.ui.checker else None
            assert last is not None
            assert f"Check {last.finding.rule} failed: {last.finding.message}" in words(app)

    play(app, act, (160, 40))


def test_the_key_alone_has_the_record_checked(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("v")
        await checked(app, pilot)
        await pilot.press("v")
        await pilot.pause()
        assert "Check budget failed" in words(app) or "Check block-leak failed" in words(app)

    play(app, act, (160, 40))


def test_what_comes_after_the_moment_on_show_is_dim(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)
        findings = app.screen.query_one(Findings)
        dim = {"dim"}

        def inks() -> list[bool]:
            lines = [findings.line(key) for key in findings.page(0, 9)]
            return [{ink for text, ink in line if text.strip()} == dim for line in lines]

        assert inks() == [False] * 9
        await pilot.press("home", "down", "down", "enter", KEY)
        await pilot.pause()
        assert inks() == [False] * 3 + [True] * 6

    play(app, act, (100, 24))


def test_a_recording_is_checked_from_end_to_end() -> None:
    history = recorded().history
    assert history is not None
    with Playback(history, "run.seqtop", paused=True) as source:
        app = SeqtopApp(source, clock=lambda: 0.0)

        async def act(pilot: Pilot[int]) -> None:
            await pilot.press(KEY)
            await checked(app, pilot)
            assert "41 steps 9 findings" in words(app)
            await pilot.press("V")
            assert source.position == found(app)[0][0]

        play(app, act, (120, 30))


def test_without_a_record_there_is_nothing_to_check(source: ScriptedSource) -> None:
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY, "enter")
        await pilot.pause()
        assert "No history yet, so there is nothing to check." in words(app)
        await pilot.press("1", "v")
        await pilot.pause()
        told = [notice.message for notice in app._notifications]
        assert told == ["No history yet."]

    play(app, act, (100, 24))


def test_moving_over_the_findings_draws_two_lines(app: SeqtopApp, lines: Counter[LineView]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)
        findings = app.screen.query_one(Findings)
        await pilot.press("home")
        await pilot.pause()
        before = lines[findings]
        await pilot.press("down")
        await pilot.pause()
        assert lines[findings] - before == 2

    play(app, act, (100, 24))


def test_checking_ends_with_the_app(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)

    play(app, act, (100, 24))
    assert [thread.is_running for thread in app._check_threads] == [False]
