"""The checks screen, and going from failed check to failed check."""

import re
import threading

from seqtop.checks.rules import RULES
from seqtop.live.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.checks.findings import Findings
from seqtop.tui.screens.checks.screen import ChecksScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire import codec, parsing
from tests.support.checks_screen import KEY, found, recorded
from tests.support.piloting import checked, play, screen, until, words
from tests.support.random_engine import RandomEngine
from tests.support.scripted import Script, ScriptedSource

THREAD = "seqtop-replay"


def test_nothing_is_checked_until_somebody_asks(app: SeqtopApp) -> None:
    with play(app, (100, 24)) as pilot:
        pilot.press("2", "1")
        assert app.ui.checks.checker is None
        pilot.press(KEY)
        assert isinstance(app.screen, ChecksScreen)
        checked(app, pilot)
        text = words(app)
        assert f"{len(RULES)} rules 41 steps 17 findings" in text
        assert f"budget 8 token-sum 8 block-leak 1 the other {len(RULES) - 3} hold" in text
        assert "18 blocks are in use, the block tables name 16; released" in text
        pilot.press("1")
        assert "checks: 17" in words(app)


def test_an_orderly_engine_has_no_findings_and_one_is_told_what_was_checked() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("one")
    script.step(prefill={"one": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        assert f"{len(RULES)} rules 1 step nothing found later steps" in words(app)
        assert "swap-map a swap names a block" in words(app)
        assert not app.screen.query_one(Findings).display
        assert "checks:" not in screen(app)
        pilot.press("enter", "down")
        assert "swap-map a contradiction" in words(app)
        for name in RULES:
            assert re.search(rf"{name} +[a-z]", screen(app)), name
            pilot.press("down")
        script.info.max_num_batched_tokens = 0
        source.apply(script.info)
        script.step()
        until(pilot, lambda: bool(app.ui.checks.checker and app.ui.checks.checker.num_findings))
        checked(app, pilot)
        assert "1 tokens were computed, the budget is 0." in words(app)
        assert "checks: 1" in words(app)


def number_of(findings: Findings) -> int | None:
    """The number of the selected finding."""
    return None if findings.selected is None else findings.selected.number


def test_enter_goes_to_the_moment_its_sequence_selected() -> None:
    payloads = [codec.encode(event) for event in RandomEngine(11, 60, num_blocks=24)]
    source = ScriptedSource(*(parsing.event(payload) for payload in payloads))
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (160, 40)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        assert app.ui.checks.checker is not None
        of_request = [
            located for located in app.ui.checks.checker.findings() if located.finding.request_id
        ]
        wanted = of_request[0]
        pilot.press("home", *["down"] * (wanted.number - 1), "enter")
        until(pilot, lambda: isinstance(app.screen, SequencesScreen))
        until(pilot, lambda: app.ui.time_travel.position == wanted.position)
        assert app.ui.state.step == wanted.finding.step
        assert app.ui.cursor.seq_id == wanted.finding.seq_id
        sentence = f"Check {wanted.finding.rule} failed of {wanted.finding.request_id}"
        until(pilot, lambda: sentence in words(app))
        until(pilot, lambda: "Warn Request" in words(app))
        assert "‖ PAUSED" in screen(app)
        pilot.press(KEY)
        until(pilot, lambda: isinstance(app.screen, ChecksScreen))
        findings = app.screen.query_one(Findings)
        until(pilot, lambda: number_of(findings) == wanted.number)
        with_block = next(
            located for located in app.ui.checks.checker.findings() if located.finding.block
        )
        pilot.press("home", *["down"] * (with_block.number - 1), "enter")
        until(pilot, lambda: app.ui.blocks.block == with_block.finding.block)


def test_a_recording_is_checked_from_end_to_end() -> None:
    history = recorded().history
    app = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        assert "41 steps 17 findings" in words(app)
        pilot.press("V")
        assert app.ui.time_travel.position == found(app)[0][0]


def test_checking_ends_with_the_app(app: SeqtopApp) -> None:
    with play(app, (100, 24)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        assert THREAD in {thread.name for thread in threading.enumerate()}
    assert THREAD not in {thread.name for thread in threading.enumerate()}
