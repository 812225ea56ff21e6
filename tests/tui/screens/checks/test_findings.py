"""The list of findings."""

from collections import Counter

from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.checks.findings import Findings
from tests.support.checks_screen import KEY
from tests.support.piloting import checked, play


def test_findings_after_the_moment_on_show_are_dim(app: SeqtopApp) -> None:
    with play(app, (100, 24)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        findings = app.screen.query_one(Findings)
        dim = {"dim"}

        def inks() -> list[bool]:
            lines = [findings.line(key) for key in findings.page(0, 9)]
            return [{ink for text, ink in line if text.strip()} == dim for line in lines]

        assert inks() == [False] * 9
        pilot.press("home", "down", "down", "enter", KEY)
        assert inks() == [False] * 3 + [True] * 6


def test_moving_over_the_findings_draws_two_lines(app: SeqtopApp, lines: Counter[LineView]) -> None:
    with play(app, (100, 24)) as pilot:
        pilot.press(KEY)
        checked(app, pilot)
        findings = app.screen.query_one(Findings)
        pilot.press("home")
        before = lines[findings]
        pilot.press("down")
        assert lines[findings] - before == 2
