"""The proof that a scheduler repeats a recorded run, decision by decision."""

from __future__ import annotations

import msgspec

from seqtop.diff.comparison import Difference, compare
from seqtop.diff.run import RunDecisions


class Proof(msgspec.Struct):
    """The result of repeating a recording with unchanged settings."""

    num_steps: int
    """Steps of the recording."""
    num_equal_steps: int
    """Steps that were repeated with the same decisions, before the first difference."""
    first_difference: Difference | None
    repeated_by: str
    """The engine that repeated it, if it is another version than the recorded one."""
    starts_late: bool
    """True if the recording starts after steps of the engine: the content of its prefix cache at
    the start is unknown."""
    is_complete: bool = True
    """False if the search was ended before the recording was repeated."""

    @property
    def is_proven(self) -> bool:
        """True if the recording was repeated, decision by decision."""
        return self.is_complete and self.first_difference is None


def prove(recorded: RunDecisions, repeated: RunDecisions, *, starts_late: bool) -> Proof:
    """Compares a repeated run with the recorded one.

    Args:
        recorded: The recorded run.
        repeated: The run that a scheduler made of it.
        starts_late: The recording starts after steps of the engine.
    """
    comparison = compare(recorded, repeated)
    by = repeated.info.engine if repeated.info is not None else ""
    is_other = recorded.info is not None and by != recorded.info.engine
    return Proof(
        len(recorded.steps),
        comparison.num_equal_steps,
        comparison.first,
        by if is_other else "",
        starts_late,
    )


def difference_lines(proof: Proof) -> list[str]:
    """Returns lines on the first decision that differs; none if all are equal."""
    first = proof.first_difference
    if first is None:
        return []
    lines = [
        f"  the first difference is in {first.kind}:",
        f"  recorded, {_step(first.step_a)}: {first.a}",
        f"  repeated, {_step(first.step_b)}: {first.b}",
        f"  because {first.cause}",
    ]
    if proof.starts_late:
        lines.append(
            "  the recording starts after steps of the engine, so that the content of its"
            " prefix cache at the start is unknown"
        )
    return lines


def _step(number: int) -> str:
    return f"step {number:,}" if number >= 0 else "no step"
