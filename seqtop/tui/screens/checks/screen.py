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
from seqtop.tui.rendering.style import PLAIN, Line, fitted, line_width
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.screens.checks import TAB
from seqtop.tui.screens.checks.findings import (
    Findings,
    about,
    names_of_rules,
    rule_lines,
    summary,
    table_of_rules,
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
        self._hint = LineView(id="checks-hint")
        self._about = LineView(id="checks-about")
        self.findings = Findings(ui)

    def body(self) -> Iterable[Widget]:
        findings = Vertical(
            self._summary, self._titles, self.findings, self._hint, id="checks-findings"
        )
        keys = {"time.check-before time.check-after": "failed check"}
        yield self.panel(findings, TAB.title, keys, is_main=True)
        yield self.panel(self._about, "Finding", {"time.finding": "go there"})

    def on_mount(self) -> None:
        self.findings.focus()

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
        for widget in (self._titles, self.findings, self._about):
            widget.display = has_findings
        self._hint.display = not has_findings
        if checker is None:
            self._summary.set_lines([])
            self._show_hint("")
            return
        info = self.ui.state.info
        is_redacted = info is not None and info.redacted
        lines = [summary(checker, is_redacted=is_redacted, width=width)]
        lines += rule_lines(checker, width)[:_MOST_RULE_LINES]
        self._summary.styles.height = len(lines)
        self._summary.set_lines(_indented(lines))
        if not has_findings:
            outlook = (
                "Later steps are checked too; findings appear here."
                if self.ui.source.connection.state is ConnectionState.LIVE
                else ""
            )
            self._show_hint(outlook, table_of_rules(), names_of_rules(width))
            return
        self.findings.show(checker)
        self._titles.set_lines([self.findings.titles])
        self._describe()

    def on_findings_moved(self, _: Findings.Moved) -> None:
        with self.ui.lock:
            self._describe()

    def action_go(self) -> None:
        if (located := self.findings.selected) is not None:
            self.post_message(self.Chosen(located))

    def _describe(self) -> None:
        width = self.line_width
        self._about.set_lines(_indented(about(self.findings.selected, width)))

    def _show_hint(self, text: str, *tables: Sequence[Line]) -> None:
        """Shows a text in the middle, and below it the first of `tables` that has room."""
        width = self.line_width
        lines: list[Line] = [
            ((text[start:end].center(width), "dim"),) for start, end in wrap(text, width - 4)
        ]
        room = self._hint.size.height - len(lines) - 1
        table = next((table for table in tables if len(table) <= room), None)
        if table:
            table = [line if line_width(line) <= width else fitted(line, width) for line in table]
            indent = (width - max(map(line_width, table))) // 2
            lines += [(), *(((" " * indent, PLAIN), *line) for line in table)]
        above = max((self._hint.size.height - len(lines)) // 2, 0)
        self._hint.set_lines([*[()] * above, *_indented(lines)])


def _indented(lines: Iterable[Line]) -> list[Line]:
    return [((" ", ""), *line) for line in lines]
