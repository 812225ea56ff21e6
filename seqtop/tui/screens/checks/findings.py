"""The findings of the checks: a row per finding, and one finding in full."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from textual.message import Message

from seqtop.checks.background import BackgroundChecker, LocatedFinding
from seqtop.checks.finding import Finding
from seqtop.checks.rules import RULES
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.bars import row, rows
from seqtop.tui.rendering.list_view import ListView
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.rendering.wrapped_text import wrapped
from seqtop.tui.ui_state import UiState

_RULE_WIDTH = max(len(rule) for rule in RULES)
_STYLES = {"error": "alert", "warning": "waiting"}
_STEP_WIDTH = 6
_WHERE_WIDTH = 12


@dataclass(frozen=True)
class Widths:
    """The widths of two columns; 0 of one that is empty in every row."""

    rule: int
    where: int


class Findings(ListView):
    """The findings, oldest first. Those later than the position on display are dim."""

    class Moved(Message):
        """The cursor is on another finding."""

    _ui: UiState

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui)
        self._findings: list[LocatedFinding] = []
        self._widths = Widths(0, 0)

    @property
    def num_rows(self) -> int:
        return len(self._findings)

    @property
    def cursor_row(self) -> int | None:
        number = self._ui.checks.selected
        if number is None or not self._findings:
            return None
        index = bisect_left(self._findings, number, key=attrgetter("number"))
        return index if index < len(self._findings) else None

    @property
    def selected(self) -> LocatedFinding | None:
        """The finding that the cursor is on."""
        index = self.cursor_row
        return None if index is None else self._findings[index]

    def show(self, checker: BackgroundChecker) -> None:
        """Shows the findings so far. Called under the lock of `ui`."""
        self._findings = checker.findings()
        self._widths = Widths(
            max((len(rule) for rule in checker.counts()), default=0),
            _WHERE_WIDTH * any(_where(located.finding) for located in self._findings),
        )
        self.set_height(len(self._findings))
        if self._findings:  # the cursor stays on its finding, or moves to the next one
            self._ui.checks.selected = self._findings[self.cursor_row or 0].number
        self.refresh_changed()

    def page(self, start: int, stop: int) -> Sequence[int]:
        return [located.number for located in self._findings[max(start, 0) : max(stop, 0)]]

    def line(self, key: int) -> Line:
        located = self._findings[bisect_left(self._findings, key, key=attrgetter("number"))]
        is_later = located.position > self._ui.time_travel.position
        return finding_line(located.finding, self._widths, self.text_width - 1, is_later=is_later)

    @property
    def titles(self) -> Line:
        """The titles of the columns."""
        texts = [f"{'step':>{_STEP_WIDTH}}", f"{'rule':<{self._widths.rule}}"]
        if self._widths.where:
            texts.append(f"{'where':<{self._widths.where}}")
        return ((f" {'  '.join(texts)}  finding", "dim"),)

    def is_selected(self, key: int) -> bool:
        return key == self._ui.checks.selected

    def select(self, key: int) -> None:
        with self._ui.lock:
            self._ui.checks.selected = key
            if (index := self.cursor_row) is not None:
                self.reveal(index)
            self.refresh_changed()
        self.post_message(self.Moved())


class Rules(ListView):
    """The rules and what each of them finds, shown while nothing is found."""

    class Moved(Message):
        """The cursor is on another rule."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui)
        self._names = list(RULES)
        self._row = 0

    @property
    def num_rows(self) -> int:
        return len(self._names)

    @property
    def cursor_row(self) -> int:
        return self._row

    @property
    def selected(self) -> str:
        """The name of the rule that the cursor is on."""
        return self._names[self._row]

    def show(self) -> None:
        """Shows the rules. Called under the lock of `ui`."""
        self.set_height(self.num_rows)
        self.refresh_changed()

    def page(self, start: int, stop: int) -> Sequence[int]:
        return range(max(start, 0), min(stop, self.num_rows))

    def line(self, key: int) -> Line:
        name = self._names[key]
        text = RULES[name].violation
        return fitted(((f"{name:<{_RULE_WIDTH}}  ", PLAIN), (text, "dim")), self.text_width - 1)

    @property
    def titles(self) -> Line:
        """The titles of the columns."""
        return ((f" {'rule':<{_RULE_WIDTH}}  what it finds", "dim"),)

    def is_selected(self, key: int) -> bool:
        return key == self._row

    def select(self, key: int) -> None:
        with self._ui.lock:
            self._row = key
            self.reveal(key)
            self.refresh_changed()
        self.post_message(self.Moved())


def finding_line(finding: Finding, widths: Widths, width: int, *, is_later: bool) -> Line:
    """Returns step, rule, request or block, and sentence in one line."""
    step = fmt.count(finding.step) if finding.step >= 0 else fmt.UNKNOWN
    line: Line = (
        (f"{step:>{_STEP_WIDTH}}  ", "strong"),
        (f"{finding.rule:<{widths.rule}}  ", _STYLES[finding.severity]),
    )
    if widths.where:
        line = (*line, *fitted(((_where(finding), PLAIN),), widths.where), ("  ", PLAIN))
    line = (*line, (safe_text(finding.message), PLAIN))
    if is_later:
        line = tuple((text, "dim") for text, _ in line)
    return fitted(line, width)


def _where(finding: Finding) -> str:
    """Returns the request or the block; empty if it is about the engine."""
    if finding.request_id is not None:
        return safe_text(finding.request_id)
    return "" if finding.block is None else f"block {finding.block}"


def summary(checker: BackgroundChecker, *, is_live: bool, is_redacted: bool, width: int) -> Line:
    """Returns the number of checked steps, of findings and of gaps in one line."""
    number = checker.num_findings
    result = fmt.plural(number, "finding") if number else "nothing found"
    return row(
        [
            (0, ((f"{len(RULES)} rules", PLAIN),)),
            (0, ((fmt.plural(checker.num_steps, "step"), PLAIN),)),
            (0, ((result, "alert" if number else "running"),)),
            (2, ((fmt.plural(checker.num_gaps, "gap"), "waiting"),) if checker.num_gaps else ()),
            (1, (("checking …", "waiting"),) if checker.replay.is_behind else ()),
            (0, ((safe_text(checker.replay.problem), "alert"),) if checker.replay.problem else ()),
            (4, (("later steps are checked, too", "dim"),) if is_live and not number else ()),
            (3, (("without token ids, which the engine does not publish", "dim"),))
            if is_redacted
            else (9, ()),
        ],
        width,
        gap=3,
    )


def rule_lines(checker: BackgroundChecker, width: int) -> list[Line]:
    """Returns the broken rules with the number of findings of each."""
    counts = checker.counts()
    if not counts:
        return []
    items: list[Line] = [
        ((rule, _STYLES[RULES[rule].severity]), (f" {fmt.count(count)}", "strong"))
        for rule, count in counts.items()
    ]
    others = len(RULES) - len(counts)
    return rows([*items, ((f"the other {others} hold", "dim"),)], width)


def about_rule(name: str, width: int) -> list[Line]:
    """Returns a rule in full."""
    rule = RULES[name]
    of = {"error": "a contradiction in what the engine says", "warning": "a sign of trouble"}
    head: Line = ((name, _STYLES[rule.severity]), (f"  {of[rule.severity]}", "dim"))
    return [fitted(head, width), *wrapped(f"It finds that {rule.violation}.", PLAIN, width)]


def about(located: LocatedFinding | None, width: int) -> list[Line]:
    """Returns one finding in full, with its rule."""
    if located is None:
        return []
    finding = located.finding
    of = f" · request {finding.request_id}" if finding.request_id is not None else ""
    sequence = f" · sequence {finding.seq_id}" if finding.seq_id is not None else ""
    block = f" · block {finding.block}" if finding.block is not None else ""
    head: Line = (
        (finding.rule, _STYLES[finding.severity]),
        (safe_text(f"  step {finding.step}{of}{sequence}{block}"), "strong"),
    )
    message = safe_text(f"{finding.message[:1].upper()}{finding.message[1:]}.")
    rule = f"The rule finds that {RULES[finding.rule].violation}."
    return [
        fitted(head, width),
        *wrapped(message, PLAIN, width),
        *wrapped(rule, "dim", width),
    ]
