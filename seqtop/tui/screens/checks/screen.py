"""The checks screen: violations of the rules in the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from seqtop.checks.background import LocatedFinding
from seqtop.transport.connection import ConnectionState
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.checks import TAB
from seqtop.tui.screens.checks.findings import (
    Findings,
    Rules,
    about,
    about_rule,
    rule_lines,
    summary,
)
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.ui_state import Changes, UiState

_MOST_RULE_LINES = 3


class ChecksScreen(EngineScreen):
    """Lists the number of checks, the findings, and one finding in full.

    Checking starts when this screen is first shown.
    """

    TAB = TAB
    WORDS = (
        ("gap", "steps that were not checked: they were dropped from memory before"),
        ("finding", "a step that breaks a rule; docs/checks.md explains each rule"),
    )
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "enter",
            "go",
            "Go there",
            id="time.finding",
            tooltip="Go to the moment of the finding, its request selected",
        ),
    ]

    class Opened(Message):
        """The screen was opened, so the history has to be checked."""

    class Chosen(Message):
        """The user chose a finding to go to."""

        def __init__(self, located: LocatedFinding) -> None:
            super().__init__()
            self.located = located

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._summary = LineView(id="checks-summary")
        self._titles = LineView(id="checks-titles")
        self._about = LineView(id="checks-about")
        self._about_rule = LineView(id="checks-about-rule")
        self.findings = Findings(ui)
        self._rules = Rules(ui)

    def body(self) -> Iterable[Widget]:
        findings = Vertical(
            self._summary, self._titles, self.findings, self._rules, id="checks-findings"
        )
        keys = {"time.check-before time.check-after": "failed check"}
        yield self.panel(findings, TAB.title, keys, is_main=True)
        yield self.panel(self._about, "Finding", {"time.finding": "go there"})
        yield self.panel(self._about_rule, "Rule")

    def on_resize(self) -> None:
        super().on_resize()
        self.call_after_refresh(self.show_all)

    def resume(self) -> None:
        self.post_message(self.Opened())
        super().resume()

    def update(self, changes: Changes) -> None:
        checker = self.ui.checks.checker
        width = self.line_width
        has_findings = checker is not None and checker.num_findings > 0
        if has_findings != self.findings.display or self._rules.display == has_findings:
            for widget in (self.findings, self._about):
                widget.display = has_findings
            for widget in (self._rules, self._about_rule):
                widget.display = not has_findings
            (self.findings if has_findings else self._rules).focus()
        if checker is None:
            self._summary.set_lines([])
        else:
            info = self.ui.state.info
            head = summary(
                checker,
                is_live=self.ui.source.connection.state is ConnectionState.LIVE,
                is_redacted=info is not None and info.redacted,
                width=width,
            )
            lines = [head, *rule_lines(checker, width)[:_MOST_RULE_LINES]]
            self._summary.styles.height = len(lines)
            self._summary.set_lines(_indented(lines))
        if checker is not None and has_findings:
            self.findings.show(checker)
            self._titles.set_lines([self.findings.titles])
        else:
            self._rules.show()
            self._titles.set_lines([self._rules.titles])
        self._describe()

    def on_findings_moved(self, _: Findings.Moved) -> None:
        with self.ui.lock:
            self._describe()

    def on_rules_moved(self, _: Rules.Moved) -> None:
        with self.ui.lock:
            self._describe()

    def action_go(self) -> None:
        if (located := self.findings.selected) is not None:
            self.post_message(self.Chosen(located))

    def _describe(self) -> None:
        width = self.line_width
        self._about.set_lines(_indented(about(self.findings.selected, width)))
        self._about_rule.set_lines(_indented(about_rule(self._rules.selected, width)))


def _indented(lines: Iterable[Line]) -> list[Line]:
    return [((" ", ""), *line) for line in lines]
