"""The list of findings."""

from collections import Counter

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.checks.findings import Findings
from tests.support.checks_screen import KEY
from tests.support.piloting import checked, play


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
