"""The account of one request: each second of its time is charged to somebody or something.

Who is charged in a step, and with what share, is decided in `seqtop.state.harm`, so the charges to
a request in all accounts add up to its harm in the table of sequences. The time of a step that the
request shared with others is divided by the costs of tokens as known in that step: to the request
what the step would have taken without the others, to each other one the cost of its tokens, and the
difference to what was measured to nobody. The charges add up to the time.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from seqtop.explain.chain import (
    NOT_RECORDED,
    RECOMPUTE,
    UNKNOWN,
    Chain,
    Piece,
)
from seqtop.state import RequestState
from seqtop.state.harm import StepHarm
from seqtop.state.holdings import HELD
from seqtop.state.wait_causes import (
    ARRIVING,
    BETWEEN_STEPS,
    PACED,
    is_known_status,
)

ChargedTo: TypeAlias = Literal["itself", "request", "settings", "host", "unexplained"]
"""To whom or to what time is charged: the request itself, another one, a setting of the engine, the
time between steps, or nobody."""
Evidence: TypeAlias = Literal["measured", "estimated", "unexplained"]
"""`measured` seconds are those of steps and pauses in which the charged cause was observed,
`estimated` ones those of the costs of tokens."""

SHARED_STEP = "shared_step"
"""The cause of time by which the tokens of others made a step longer."""
QUEUE_HEAD = "queue_head"
"""The cause of a wait behind the head of the queue, for the part of what the head waits for that is
free: it is kept for the head."""
UNNAMED_BLOCKS = "unnamed_blocks"
"""The cause of a wait for blocks that are in use, but in no block table."""
STEP_TIME = "step_time"
"""The difference between the time of shared steps and the estimates."""
NO_ESTIMATE = "no_estimate"
"""The cause of time in shared steps while the costs of tokens are not known."""
_CLOCK_ERROR = 1e-6
"""Seconds: a difference of times since the epoch is not more exact."""
MAX_OTHERS = 1_000
"""The most other requests that are told apart in one account."""


class Charge(msgspec.Struct, frozen=True):
    """Seconds of a request's time that are charged for one cause."""

    charged_to: ChargedTo
    request_id: str | None
    """The other request; `None` unless one is charged, and for those beyond `MAX_OTHERS`."""
    cause: str
    """A `WaitCause` or another cause of waiting, `prefill`, `decode`, or a constant of this module
    or of `seqtop.explain.chain`."""
    evidence: Evidence
    seconds: float
    """Negative only for `step_time`: the estimates are then more than was measured."""


class Account:
    """Charges the time of one request; fed with what its chain is fed with.

    Args:
        request: The request, with its metrics as far as they are known.
        only: The other request whose charges are wanted; `None` for all.
    """

    def __init__(self, request: RequestState, only: str | None = None) -> None:
        self.chain = Chain(request, self.charge)
        self.request_id = request.request_id
        self.seconds = 0.0
        """The seconds that are charged."""
        self._lora = request.lora
        self._only = only
        self._step: StepHarm | None = None
        self._is_estimated = False
        """True if the estimates of the present step have been added."""
        self._sums: dict[tuple[ChargedTo, str | None, str, Evidence], float] = {}
        self._names: set[str] = set()

    def enter(self, step: StepHarm | None) -> None:
        """Sets the step to which the next pieces belong, or `None`."""
        self._step, self._is_estimated = step, False

    def charges(self) -> list[Charge]:
        """Returns the charges, the largest first."""
        charges = [
            Charge(to, name, cause, evidence, seconds)
            for (to, name, cause, evidence), seconds in self._sums.items()
            if abs(seconds) > (_CLOCK_ERROR if cause == STEP_TIME else 0.0)
        ]
        return sorted(charges, key=lambda charge: -abs(charge.seconds))

    def charge(self, piece: Piece) -> None:
        """Charges a piece of the time of the request."""
        self.seconds += piece.seconds
        match piece.kind:
            case "prefill" | "decode" if piece.cause != NOT_RECORDED:
                self._charge_run(piece)
            case "host":
                to: ChargedTo = "settings" if piece.cause == PACED else "host"
                self._add(to, None, piece.cause or BETWEEN_STEPS, piece.seconds)
            case "queued" | "preempted" | "swapped":
                self._charge_wait(piece)
            case "unscheduled" if piece.cause == "token_budget" and self._step is not None:
                self._charge_holders(piece, self._step)
            case _:
                self._unexplained(piece.cause or UNKNOWN, piece.seconds)

    def _charge_run(self, piece: Piece) -> None:
        step, preemptor = self._step, None
        if piece.cause == RECOMPUTE and piece.preemption is not None:
            # Preempted for its own need, it computes its tokens again for itself.
            preemptor = piece.preemption.for_request_id
        to: ChargedTo = "itself"
        cause: str = piece.kind
        if preemptor not in (None, self.request_id):
            to, cause = "request", RECOMPUTE
        name = preemptor if to == "request" else None
        if step is None or len(step.tokens) <= 1:
            self._add(to, name, cause, piece.seconds)
        elif not step.has_estimates:
            self._unexplained(NO_ESTIMATE, piece.seconds)
        else:
            self._unexplained(STEP_TIME, piece.seconds)
            if not self._is_estimated:  # a step may have several pieces
                self._is_estimated = True
                self._estimate(to, name, cause, step.alone(self.request_id))
                for other in step.tokens if self._only is None else (self._only,):
                    if other != self.request_id:
                        self._estimate("request", other, SHARED_STEP, step.delay(other))

    def _charge_wait(self, piece: Piece) -> None:
        cause, seconds, step = piece.cause, piece.seconds, self._step
        if piece.between and step is not None and step.stalled and cause in HELD:
            self._charge_holders(piece, step)
        elif piece.between == PACED:
            self._add("settings", None, PACED, seconds)
        elif piece.between or cause == ARRIVING:
            # Nobody used what it waits for then: it waited longer as the next step came late.
            self._add("host", None, piece.between or cause, seconds)
        elif cause in ("paused", "reserved_blocks"):
            self._add("settings", None, cause, seconds)
        elif is_known_status(cause):
            self._add("itself", None, cause, seconds)
        elif cause in HELD and step is not None:
            self._charge_holders(piece, step)
        else:
            self._unexplained(cause, seconds)

    def _charge_holders(self, piece: Piece, step: StepHarm) -> None:
        """Charges a wait to the holders of what is waited for, or else to the limit itself."""
        cause, seconds = piece.cause, piece.seconds
        shares = step.shares(cause, self._lora, is_behind=piece.head is not None)
        if not shares.by_request and not shares.unnamed and not shares.withheld:
            self._add("settings", None, cause, seconds)
            return
        for name, share in shares.by_request.items():
            if name == self.request_id:
                self._add("itself", None, cause, seconds * share)
            else:
                self._add("request", name, cause, seconds * share)
        if piece.head is not None:
            self._add("request", piece.head, QUEUE_HEAD, seconds * shares.withheld)
        self._unexplained(UNNAMED_BLOCKS, seconds * shares.unnamed)

    def _unexplained(self, cause: str, seconds: float) -> None:
        self._count("unexplained", None, cause, "unexplained", seconds)

    def _add(self, to: ChargedTo, name: str | None, cause: str, seconds: float) -> None:
        self._count(to, name, cause, "measured", seconds)

    def _estimate(self, to: ChargedTo, name: str | None, cause: str, seconds: float) -> None:
        self._count(to, name, cause, "estimated", seconds)
        self._unexplained(STEP_TIME, -seconds)

    def _count(
        self, to: ChargedTo, name: str | None, cause: str, evidence: Evidence, seconds: float
    ) -> None:
        if seconds and (name is None or self._only in (None, name)):
            key = to, None if name is None else self._known(name), cause, evidence
            self._sums[key] = self._sums.get(key, 0.0) + seconds

    def _known(self, name: str) -> str | None:
        """Returns a name that is told apart, or `None`."""
        if name not in self._names:
            if len(self._names) >= MAX_OTHERS:
                return None
            self._names.add(name)
        return name
