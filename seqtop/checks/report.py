"""Checks of a live engine or of a recording, for `seqtop check`.

The report is in sentences, JSON or JUnit XML, for people and for an engine's own CI.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from seqtop.checks.background import BackgroundChecker
from seqtop.checks.finding import Finding
from seqtop.checks.gate import GATE_RULES, Gate, Outcome
from seqtop.checks.message_rules import PROTOCOL_RULES
from seqtop.checks.rules import RULES
from seqtop.checks.stream_checker import StreamChecker
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.history import FileStore
from seqtop.history.replay import ShowProgress, no_progress
from seqtop.text.junit import Case, Suite, junit, junit_of_all
from seqtop.text.sanitize import indented_json, safe_line

_PROGRESS_SECONDS = 0.1
"""Seconds after which progress is shown again."""

_MAX_ANNOTATIONS = 10
"""Annotations of a severity that GitHub shows of one step of a job; it drops more."""

__all__ = ["Report", "check_recording"]


class Report(msgspec.Struct):
    """The result of checking an engine or a recording."""

    source: str
    num_events: int = 0
    num_steps: int = 0
    num_gaps: int = 0
    """Gaps in the stream; checking started again after each."""
    num_unknown: int = 0
    """Events of a live stream whose names this version does not know, which were skipped."""
    counts: dict[str, int] = {}
    """Findings by rule."""
    findings: list[Finding] = []
    """The first findings of each rule."""
    complete: bool = True
    """False if a recording is damaged, a stream ended in a gap, or there was no step."""
    problem: str | None = None
    """A sentence on the reason why it is not complete; `None` if it is."""
    num_errors: int = 0
    """Findings of rules whose severity is `error`."""
    num_warnings: int = 0
    """Findings of rules whose severity is `warning`."""
    predicted_from: str = ""
    """The recording from which the checked one was predicted; empty for a run of an engine."""
    num_snapshots: int | None = None
    """Snapshots that were compared with the state after the messages before them; `None` if the
    protocol was not checked."""

    gates: list[Outcome] = []
    """The outcomes of gates, also of those that are met."""
    baseline: str = ""
    """The recording that this one was compared with; empty if it was not."""
    verdict: str = ""
    """A sentence on the differences from the baseline, with the first cause."""

    def add_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Adds what was found of gates: a missed one is a finding.

        A condition or an objective that is unknown makes the report incomplete.
        """
        self.gates += outcomes
        missed = [outcome for outcome in outcomes if outcome.result == "missed"]
        for outcome in missed:
            self.counts[outcome.rule] = self.counts.get(outcome.rule, 0) + 1
        self.num_errors += len(missed)
        self.findings[:0] = [
            Finding(
                outcome.rule,
                f"{outcome.gate}: {outcome.message}",
                outcome.step,
                outcome.request_id,
            )
            for outcome in missed
        ]
        for outcome in outcomes:
            if outcome.result == "unknown" and outcome.rule != "regression":
                self.add_problem(f"{outcome.rule} {outcome.gate}: unknown: {outcome.message}")

    def add_problem(self, problem: str) -> None:
        """Makes the report incomplete, for a further reason in a sentence."""
        self.problem = "; ".join(filter(None, (self.problem, problem)))
        self.complete = False

    def as_json(self) -> str:
        """Returns the report as indented JSON."""
        return indented_json(self)

    def as_junit(self) -> str:
        """Returns the report as JUnit XML: a test case per rule and gate, and one `complete`."""
        return junit(self._suite())

    def _suite(self) -> Suite:
        """Returns the report as a test suite."""
        checks_protocol = self.num_snapshots is not None
        rules = {
            name: RULES[name] for name in RULES if checks_protocol or name not in PROTOCOL_RULES
        }
        problem = None if self.complete else self.problem or ""
        cases = [Case(classname=self.source, name="complete", error=problem)]
        for outcome in self.gates:
            case = Case(classname=self.source, name=f"{outcome.rule} {outcome.gate}")
            if outcome.result == "missed":
                case.failure, case.failure_type = outcome.message, "error"
                case.details = self._with_verdict(outcome.rule, safe_line(outcome.message))
            elif outcome.result == "unknown":
                case.skipped = outcome.message
            cases.append(case)
        for name, rule in rules.items():
            case = Case(classname=self.source, name=name)
            if self.counts.get(name):
                case.failure, case.failure_type = rule.violation, rule.severity
                case.details = "\n".join(
                    sentence(finding) for finding in self.findings if finding.rule == name
                )
            cases.append(case)
        return Suite("seqtop check", cases)

    def as_github(self) -> str:
        """Returns the report as commands of GitHub's workflows, which annotate a run."""
        lines: list[str] = []
        for severity in ("error", "warning"):
            found = [own for own in self.findings if own.severity == severity]
            lines += [
                _command(
                    severity,
                    f"{finding.rule} in {self.source}",
                    self._with_verdict(finding.rule, sentence(finding)),
                )
                for finding in found[:_MAX_ANNOTATIONS]
            ]
        if not self.complete:
            title = f"not all of {self.source} could be checked"
            lines.append(_command("error", title, safe_line(self.problem or "")))
        lines.append(_command("notice", f"checked {self.source}", "\n".join(self._summary())))
        return "\n".join(lines)

    def as_text(self) -> str:
        """Returns the report in sentences: a line per finding, one per broken rule, a summary."""
        return "\n".join([*map(sentence, self.findings), *self._summary()])

    def _with_verdict(self, rule: str, message: str) -> str:
        """Returns a message with the reason why the run differs, if it is about that."""
        if rule != "regression":
            return message
        return f"{message}\ncompared with {safe_line(self.baseline)}: {safe_line(self.verdict)}"

    def _summary(self) -> list[str]:
        """Returns a line per broken rule and per gate that is not missed, and the numbers."""
        lines = [
            safe_line(f"{outcome.rule} {outcome.gate}: {outcome.result}: {outcome.message}")
            for outcome in self.gates
            if outcome.result != "missed"
        ]
        if self.baseline:
            lines.append(safe_line(f"compared with {self.baseline}: {self.verdict}"))
        for name, count in self.counts.items():
            rule = GATE_RULES[name] if name in GATE_RULES else RULES[name]
            lines.append(f"{count:,} of {name} ({rule.severity}): {rule.violation}")
        amount = f"{self.num_steps:,} steps, {self.num_events:,} events, {self.num_gaps:,} gaps"
        if self.num_snapshots is not None:
            amount += f", {self.num_snapshots:,} snapshots"
        total = self.num_errors + self.num_warnings
        warnings = f", {self.num_warnings:,} of them warnings" if self.num_warnings else ""
        partly = "" if self.complete else "; not all could be checked"
        lines.append(f"{safe_line(self.source)}: {amount}, {total:,} findings{warnings}{partly}")
        return lines


def suites(reports: Sequence[Report]) -> str:
    """Returns several reports as one document of JUnit XML."""
    return junit_of_all([report._suite() for report in reports])


def _command(severity: str, title: str, message: str) -> str:
    """Returns a command of GitHub's workflows, escaped as their toolkit does it.

    https://github.com/actions/toolkit/blob/main/packages/core/src/command.ts
    """
    title = _escaped(safe_line(title)).replace(":", "%3A").replace(",", "%2C")
    return f"::{severity} title={title}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def sentence(finding: Finding) -> str:
    """Formats a finding as one line of text, safe for a terminal."""
    where = [f"step {finding.step}"] if finding.step >= 0 else ["before the first step"]
    if finding.step < 0 and finding.rule in GATE_RULES:
        where = ["the whole run"]
    if finding.request_id is not None:
        where.append(f"request {finding.request_id}")
    if finding.seq_id is not None:
        where.append(f"sequence {finding.seq_id}")
    return safe_line(f"{', '.join(where)}: {finding.rule}: {finding.message}")


def check_recording(
    path: str | os.PathLike[str],
    *,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    progress: ShowProgress = no_progress,
    gates: Sequence[Gate] = (),
) -> Report:
    """Checks a recording, as far as it can be read.

    Args:
        path: The recording.
        thresholds: The thresholds of the rules.
        progress: Shows the part that has been checked.
        gates: What the run has to satisfy besides.

    Raises:
        RecordingError: The file does not exist or is not a recording of this version.
    """
    with FileStore(path) as recording:
        checker = BackgroundChecker(recording, stored="first", thresholds=thresholds, gates=gates)
        while checker.replay.advance(_PROGRESS_SECONDS):
            progress(checker.replay.share)
        report = report_of(os.fspath(path), checker)
        unreadable = list(dict.fromkeys([*checker.replay.errors, *recording.unreadable()]))
        report.complete = not (unreadable or recording.num_lost_bytes) and report.num_steps > 0
        report.problem = recording.damage
        report.predicted_from = recording.predicted_from
        if unreadable and report.problem is None:
            more = f", and so are {len(unreadable) - 1:,} more places" if unreadable[1:] else ""
            report.problem = f"{unreadable[0]}{more}"
        elif not report.num_steps and not recording.is_empty and not recording.num_lost_bytes:
            report.problem = f"{recording.path} has no step in it: there is nothing to check"
        report.add_outcomes(outcomes(checker))
        return report


def outcomes(checker: StreamChecker) -> list[Outcome]:
    """Returns the outcomes of the gates of a checker."""
    return [outcome for gate in checker.gates for outcome in gate.outcomes()]


def report_of(source: str, checker: StreamChecker) -> Report:
    """Ends a check, and returns its report without the outcomes of gates."""
    checker.end()
    return Report(
        source,
        num_events=checker.num_events,
        num_steps=checker.num_steps,
        num_gaps=checker.num_gaps,
        counts=(counts := checker.counts()),
        num_errors=sum(counts[name] for name in counts if RULES[name].severity == "error"),
        num_warnings=sum(counts[name] for name in counts if RULES[name].severity == "warning"),
        findings=[located.finding for located in checker.findings()],
    )
