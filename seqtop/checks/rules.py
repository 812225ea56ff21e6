"""Declaration of rules, and the base class of groups of them.

A rule is a method of a group that is decorated with `rule`. The decorator registers its name and
its sentence in `RULES`, and puts the name into its findings:

    @rule("late-token", "a sequence got tokens after its end")
    def _late_token(self, sequence: SequenceState) -> Iterator[Finding]:
        ...
            yield self.of_sequence(sequence, "1 token after its end")
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from seqtop.checks.finding import Finding, Severity
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.wire.batch import Member
from seqtop.wire.messages import Event


class Rule(NamedTuple):
    """A rule of the checks."""

    violation: str
    """A sentence that describes a violation, without a period."""
    severity: Severity


RULES: dict[str, Rule] = {}
"""The rules by name."""

LOADING = "WAITING_FOR_REMOTE_KVS"
"""vLLM's status of a request whose KV cache a connector loads."""

_Group = TypeVar("_Group", bound="RuleGroup")
_Args = ParamSpec("_Args")
_Check: TypeAlias = Callable[Concatenate[_Group, _Args], Iterator[Finding]]


class rule:  # noqa: N801 (a decorator)
    """Registers a rule; decorates each method that checks it.

    Args:
        name: The name of the rule in findings, reports and documents.
        violation: A sentence that describes a violation, without a period.
        severity: The severity of its findings.

    Raises:
        ValueError: There is a rule of this name already.
    """

    def __init__(self, name: str, violation: str, severity: Severity = "error") -> None:
        if name in RULES:
            raise ValueError(f"rule {name!r} is declared twice")
        RULES[name] = Rule(violation, severity)
        self._name, self._severity = name, severity

    def __call__(self, check: _Check[_Group, _Args]) -> _Check[_Group, _Args]:
        """Makes `check` yield findings of this rule."""
        name_finding = self._name_finding

        @functools.wraps(check)
        def named(group: _Group, /, *args: _Args.args, **kwargs: _Args.kwargs) -> Iterator[Finding]:
            return map(name_finding, check(group, *args, **kwargs))

        return named

    def _name_finding(self, finding: Finding) -> Finding:
        finding.rule, finding.severity = self._name, self._severity
        return finding


class RuleGroup:
    """Rules that read the same data; each checks only the changes of an event.

    Subclasses override the hooks that they need.

    Args:
        state: The state of the engine, which the `Checker` updates.

    Attributes:
        members: The sequences in the batch of the current event, set by the `Checker`.
    """

    members: Sequence[Member] = ()

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def before(self, event: Event) -> Iterator[Finding]:
        """Checks the state before `event` is applied."""
        yield from ()

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the state after `event` was applied, which changed the sequences `touched`."""
        yield from ()

    def ran(self, request: RequestState) -> Iterator[Finding]:
        """Checks an unfinished request that was in the batch of the step just applied."""
        yield from ()

    def end(self) -> Iterator[Finding]:
        """Checks the state after the last event."""
        yield from ()

    def of_engine(
        self, message: str, *, request_id: str | None = None, block: int | None = None
    ) -> Finding:
        """Returns a finding about the engine, a request or a block, as of the last step."""
        return Finding("", message, self.state.step, request_id, block=block)

    def of_sequence(
        self, sequence: SequenceState, message: str, *, block: int | None = None
    ) -> Finding:
        """Returns a finding about a sequence, as of the last step."""
        ids = sequence.request_id, sequence.seq_id
        return Finding("", message, self.state.step, *ids, block)
