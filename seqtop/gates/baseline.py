"""A comparison with a baseline: a run must not be worse than it by more than a tolerance."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Final

from seqtop.checks.gate import Outcome, Result
from seqtop.checks.report import Report
from seqtop.diff import verdict
from seqtop.diff.comparison import RunComparison, compare
from seqtop.diff.run import RunDecisions
from seqtop.diff.same_requests import Figure
from seqtop.history import FileStore, RecordingError
from seqtop.text import format as fmt

DEFAULT_TOLERANCE: Final = 0.1
"""The relative change for the worse up to which a figure passes."""
_OF_REQUESTS: Final = frozenset({"served", "TTFT", "TPOT", "end to end"})
_OF_RECORDING: Final = frozenset({"throughput", "preemptions", "prefix-cache hit share"})


class Baseline:
    """A recorded run that others are compared with.

    Args:
        path: The recording.
        recording: The same, open.
        tolerance: The relative change for the worse up to which a figure passes.

    Raises:
        RecordingError: A part of the recording cannot be read.
    """

    def __init__(
        self, path: str | os.PathLike[str], recording: FileStore, tolerance: float
    ) -> None:
        self.path = os.fspath(path)
        self._run = RunDecisions(recording)
        self._tolerance = tolerance

    def compare(self, report: Report, path: str | os.PathLike[str]) -> None:
        """Adds to the report of a recording how it compares with the baseline.

        If no figure of the requests can be compared, or the recording cannot be read as a whole,
        the report is not complete.

        Args:
            report: The report.
            path: The recording.
        """
        try:
            with FileStore(path) as recording:
                recording.require()
                comparison = compare(self._run, RunDecisions(recording))
        except RecordingError as error:
            report.add_problem(f"not compared with {self.path}: {error}")
            return
        if not comparison.num_requests:
            report.add_problem(f"not compared with {self.path}: no request is in both")
            return
        report.baseline = self.path
        report.verdict = "; ".join([verdict.sentence(comparison), *verdict.remarks(comparison)])
        judged = [(figure, self._result(figure)) for figure in _judged(comparison)]
        report.add_outcomes([*self._outcomes(comparison, judged)])
        if all(result == "unknown" for figure, result in judged if figure.unit == "s"):
            report.add_problem(f"no latency can be compared with {self.path}")

    def _outcomes(
        self, comparison: RunComparison, judged: Iterable[tuple[Figure, Result]]
    ) -> Iterator[Outcome]:
        first = verdict.telling(comparison)
        step = -1 if first is None else first.step_b
        for figure, result in judged:
            change = self._tolerance if figure.better < 0 else -self._tolerance
            yield Outcome(
                rule="regression",
                gate=f"{figure.name.replace(',', '')} within {fmt.percent(self._tolerance)}",
                result=result,
                message=_message(figure, result),
                value=figure.b,
                limit=None if figure.a is None else figure.a * (1 + change),
                step=step if result == "missed" else -1,
            )

    def _result(self, figure: Figure) -> Result:
        """Judges a figure; what is only known to be at least so much is judged as far as it is."""
        a, b = figure.a, figure.b
        if a is None or b is None:
            return "unknown"
        if figure.better > 0:
            return "missed" if b < a * (1 - self._tolerance) else "met"
        is_worse = b > a * (1 + self._tolerance)
        is_unknown = figure.a_is_least if is_worse else figure.b_is_least
        return "unknown" if is_unknown else "missed" if is_worse else "met"


def _message(figure: Figure, result: Result) -> str:
    """Returns both values and the change; of one that is judged, to a tenth of a percent."""
    a = verdict.value_text(figure.a, figure.unit, is_least=figure.a_is_least)
    b = verdict.value_text(figure.b, figure.unit, is_least=figure.b_is_least)
    text = f"{a} → {b}"
    is_limit = figure.a_is_least or figure.b_is_least
    if result == "unknown":
        return f"{text}; it depends on requests that had not ended" if is_limit else text
    if figure.change is None:
        return text
    least = "≤ " if figure.a_is_least else "≥ " if figure.b_is_least else ""
    return f"{text} ({least}{figure.change:+.1%})"


def _judged(comparison: RunComparison) -> list[Figure]:
    """Returns the figures that are judged."""
    return [
        figure
        for figure in comparison.figures
        if figure.name.partition(",")[0] in (_OF_REQUESTS if figure.of_requests else _OF_RECORDING)
    ]
