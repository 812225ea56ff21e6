"""The keys that go from failed check to failed check."""

import pytest

from seqtop.checks.background import BackgroundChecker
from seqtop.checks.finding import Finding
from seqtop.checks.stream_checker import LocatedFinding
from seqtop.tui.app import SeqtopApp
from seqtop.tui.checks import sequence_sentence
from seqtop.tui.navigation import go_to_finding
from tests.support.checks_screen import KEY, found, recorded
from tests.support.piloting import checked, notices, play, until, words
from tests.support.scripted import Script, ScriptedSource


@pytest.fixture
def app() -> SeqtopApp:
    """The app with a run in which checks fail."""
    return SeqtopApp(recorded(), clock=lambda: 0.0)


def test_from_failed_check_to_failed_check(app: SeqtopApp) -> None:
    with play(app, (160, 40)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        positions = list(dict(found(app)))
        for screen_key in ("1", "2"):
            pilot.press(screen_key, "L")
            for position in reversed(positions):
                pilot.press("v")
                assert app.ui.time_travel.position == position
                assert app.ui.paused
            pilot.press("v")
            assert app.ui.time_travel.position == positions[0]
            assert "No failed check before this moment: 41 steps checked." in notices(app)
            for position in positions[1:]:
                pilot.press("V")
                assert app.ui.time_travel.position == position
            pilot.pause()
            last = app.ui.checks.checker.findings()[-1] if app.ui.checks.checker else None
            assert f"Check {last.finding.rule} failed: {last.finding.message}" in words(app)


def test_the_key_alone_has_the_record_checked(app: SeqtopApp) -> None:
    with play(app, (160, 40)) as pilot:
        pilot.press("v")
        checked(app, pilot)
        pilot.press("v")
        rules = "budget", "block-leak", "token-sum"
        assert any(f"Check {rule} failed" in words(app) for rule in rules)


def test_of_the_findings_about_a_sequence_the_newest_is_shown() -> None:
    located = [
        LocatedFinding(number, 10 * step, Finding("token-sum", f"the sum of step {step}", step))
        for number, step in enumerate((3, 7), start=1)
    ]
    assert sequence_sentence(located) == (
        "Error token-sum at step 7: the sum of step 7 (1 other finding)."
    )


def test_a_finding_about_a_request_selects_its_first_sequence() -> None:
    script = Script(ScriptedSource())
    script.arrive("before")
    script.arrive("pair", n=2)
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    with play(app):
        finding = Finding("order", "late", 0, request_id="pair", block=0)
        go_to_finding(app.ui, LocatedFinding(1, app.ui.time_travel.position, finding), "")
        assert app.ui.cursor.seq_id == script.source.state.requests["pair"].seq_ids[0]
        assert app.ui.blocks.block == 0


def test_a_fault_of_the_checker_is_shown(app: SeqtopApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a table")

    monkeypatch.setattr(BackgroundChecker, "apply", fail)
    with play(app, (80, 24)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        until(pilot, lambda: "stopped by a fault: KeyError: 'a table'" in words(app))
        assert "checking …" not in words(app)
        pilot.press("v")
        assert "0 steps checked; stopped by a fault: KeyError" in notices(app)[-1]
