"""The keys that go from failed check to failed check."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from tests.support.checks_screen import KEY, found, recorded, words
from tests.support.piloting import checked, notices, play


@pytest.fixture
def app() -> SeqtopApp:
    """The app with a run in which checks fail."""
    return SeqtopApp(recorded(), clock=lambda: 0.0)


def test_from_failed_check_to_failed_check(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(KEY)
        await checked(app, pilot)
        positions = list(dict(found(app)))
        for screen_key in ("1", "2"):
            await pilot.press(screen_key, "L")
            for position in reversed(positions):
                await pilot.press("v")
                assert app.ui.time_travel.position == position
                assert app.ui.paused
            await pilot.press("v")
            assert app.ui.time_travel.position == positions[0]
            assert "No failed check before this moment: 41 steps checked." in notices(app)
            for position in positions[1:]:
                await pilot.press("V")
                assert app.ui.time_travel.position == position
            await pilot.pause()
            last = app.ui.checks.checker.findings()[-1] if app.ui.checks.checker else None
            assert last is not None
            assert f"Check {last.finding.rule} failed: {last.finding.message}" in words(app)

    play(app, act, (160, 40))


def test_the_key_alone_has_the_record_checked(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("v")
        await checked(app, pilot)
        await pilot.press("v")
        await pilot.pause()
        rules = "budget", "block-leak", "token-sum"
        assert any(f"Check {rule} failed" in words(app) for rule in rules)

    play(app, act, (160, 40))
