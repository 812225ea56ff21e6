"""Gates: demands on a run beyond the rules, and their outcomes.

A gate is a condition that must not hold, an objective, or a baseline that the run must not fall
behind. Its outcome is a finding if it is missed.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from seqtop.checks.rules import Rule
from seqtop.history.replay import Reader

GateRule: TypeAlias = Literal["condition", "objective", "regression"]
"""The rule of the findings of a gate."""
Result: TypeAlias = Literal["met", "missed", "unknown"]

GATE_RULES: Final[dict[GateRule, Rule]] = {
    "condition": Rule("a condition held that must not", "error"),
    "objective": Rule("requests are slower than an objective allows", "error"),
    "regression": Rule("a figure is worse than in the baseline", "error"),
}
"""The rules of gates; all other rules are in `RULES`."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a gate on a run."""

    rule: GateRule
    gate: str
    """The demand in words, such as `kv>95%` or `TTFT p99 ≤ 500 ms`."""
    result: Result
    message: str
    """A sentence with the figures that were found."""
    value: float | None = None
    """The figure that was found, in seconds or in the unit of the figure; `None` if it is unknown,
    or the gate has none."""
    limit: float | None = None
    """The limit that the figure must not be beyond."""
    step: int = -1
    """The step that shows a missed gate; -1 if there is none."""
    request_id: str | None = None
    """A request that shows it."""


class Gate(Reader):
    """A gate that reads a run; `outcomes` is called after its end."""

    def outcomes(self) -> list[Outcome]:
        """Returns what was found."""
        raise NotImplementedError
