"""The account of one request: each second of its time is charged to somebody or something.

A wait is charged to the requests that held what it waited for, in proportion to what they held in
that step; if there was room for the request, but not for the one before it in the queue, to that
one. The time of a step that the request shared with others is divided by a model of the times of
steps: to the request what the step would have taken without the others, to each other one the cost
of its tokens, and the difference to what was measured to nobody. The charges add up to the time.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec

from seqtop.explain.chain import (
    NOT_RECORDED,
    RECOMPUTE,
    UNKNOWN,
    Chain,
    Piece,
)
from seqtop.history.step_time import StepTime
from seqtop.ledger.contention import Contention, Tokens, shares
from seqtop.state import RequestState
from seqtop.state.wait_causes import (
    ARRIVING,
    BETWEEN_STEPS,
    IN_PROGRESS,
    PACED,
    is_known_status,
)

ChargedTo: TypeAlias = Literal["itself", "request", "settings", "host", "unexplained"]
"""To whom or to what time is charged: the request itself, another one, a setting of the engine, the
time between steps, or nobody."""
Evidence: TypeAlias = Literal["measured", "estimated", "unexplained"]
"""`measured` seconds are those of steps and pauses in which the charged cause was observed,
`estimated` ones those of the model of the times of steps."""

_Key = TypeVar("_Key")

SHARED_STEP = "shared_step"
"""The cause of time by which the tokens of others made a step longer."""
QUEUE_HEAD = "queue_head"
"""The cause of a wait behind a request that did not fit, although there was room for this one."""
UNNAMED_BLOCKS = "unnamed_blocks"
"""The cause of a wait for blocks that are in use, but in no block table."""
STEP_TIME = "step_time"
"""The cause of time in shared steps that the model does not give, or has too much of."""
NO_ESTIMATE = "no_estimate"
"""The cause of all time in shared steps, if there is no model."""
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
    """Negative only for `step_time`: the model then gives more than was measured."""


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
        self._only = only
        self._request: RequestState | None = None
        self._contention: Contention | None = None
        self._measured: dict[tuple[ChargedTo, str | None, str], float] = {}
        self._others: dict[str | None, Tokens] = {}
        """The tokens of others in the steps shared with them."""
        self._own: dict[str, tuple[Tokens, float]] = {}
        """In shared steps by cause, the own tokens and the number of steps."""
        self._recomputed: dict[str | None, tuple[Tokens, float]] = {}
        """In shared steps, the same for prefills after a preemption, by who was preempted for."""
        self._shared_seconds = 0.0
        self._names: set[str] = set()
        self._owed_by: str | None = None
        """The request for which it was preempted, until it has computed its tokens again."""

    def enter(self, contention: Contention | None, request: RequestState | None) -> None:
        """Sets the step to which the next pieces belong, or `None`, and the request as it is."""
        self._contention, self._request = contention, request

    def owes_recompute(self, request_id: str) -> bool:
        """Returns whether tokens have to be computed again that a preemption for one discarded."""
        return self._owed_by == request_id

    def charges(self, step_time: StepTime | None) -> list[Charge]:
        """Returns the charges, the largest first.

        Args:
            step_time: The model of the times of steps; `None` if there is none.
        """
        charges = [
            Charge(to, name, cause, _MEASURED[to], seconds)
            for (to, name, cause), seconds in self._measured.items()
        ]
        charges += self._estimates(step_time)
        charges = [charge for charge in charges if charge.seconds]
        return sorted(charges, key=lambda charge: -abs(charge.seconds))

    def seconds_of(self, request_id: str, step_time: StepTime | None) -> float:
        """Returns the seconds that are charged to another request."""
        return sum(
            charge.seconds for charge in self.charges(step_time) if charge.request_id == request_id
        )

    def _estimates(self, step_time: StepTime | None) -> list[Charge]:
        rest = self._shared_seconds
        charges: list[Charge] = []
        if step_time is not None:
            per_step = step_time.per_step
            for name, tokens in self._others.items():
                seconds = cost(step_time, tokens)
                charges.append(Charge("request", name, SHARED_STEP, "estimated", seconds))
                rest -= seconds
            for cause, (tokens, steps) in self._own.items():
                seconds = per_step * steps + cost(step_time, tokens)
                charges.append(Charge("itself", None, cause, "estimated", seconds))
                rest -= seconds
            for name, (tokens, steps) in self._recomputed.items():
                seconds = per_step * steps + cost(step_time, tokens)
                charges.append(Charge("request", name, RECOMPUTE, "estimated", seconds))
                rest -= seconds
        if abs(rest) > _CLOCK_ERROR:
            cause = NO_ESTIMATE if step_time is None else STEP_TIME
            charges.append(Charge("unexplained", None, cause, "unexplained", rest))
        return charges

    def charge(self, piece: Piece) -> None:
        """Charges a piece of the time of the request."""
        self.seconds += piece.seconds
        if piece.kind != "host":
            is_owed = piece.kind in ("preempted", "swapped") or piece.cause == RECOMPUTE
            preemption = piece.preemption if is_owed else None
            self._owed_by = None if preemption is None else preemption.for_request_id
        match piece.kind:
            case "prefill" | "decode" if piece.cause != NOT_RECORDED:
                self._charge_run(piece)
            case "host":
                to: ChargedTo = "settings" if piece.cause == PACED else "host"
                self._add(to, None, piece.cause or BETWEEN_STEPS, piece.seconds)
            case "queued" | "preempted" | "swapped":
                self._charge_wait(piece)
            case "unscheduled" if piece.cause == "token_budget":
                self._charge_holders(piece, "settings")
            case _:
                self._add("unexplained", None, piece.cause or UNKNOWN, piece.seconds)

    def _charge_run(self, piece: Piece) -> None:
        contention = self._contention
        preemptor = None
        is_again = piece.cause == RECOMPUTE
        if is_again and piece.preemption is not None:
            preemptor = piece.preemption.for_request_id
            # Without others behind it, a request is preempted for its own need.
            is_again = preemptor != self.request_id
        if contention is None or len(contention.tokens) <= 1:
            if not is_again:
                self._add("itself", None, piece.kind, piece.seconds)
            elif preemptor is not None:
                self._add("request", preemptor, RECOMPUTE, piece.seconds)
            else:
                self._add("unexplained", None, RECOMPUTE, piece.seconds)
            return
        share = min(piece.seconds / contention.seconds, 1.0) if contention.seconds > 0 else 1.0
        self._shared_seconds += piece.seconds
        self._add_others(contention, share)
        own = contention.tokens.get(self.request_id, Tokens())
        if is_again and preemptor is not None:
            _add_steps(self._recomputed, self._known(preemptor), own, share)
        elif not is_again:
            _add_steps(self._own, piece.kind, own, share)

    def _add_others(self, contention: Contention, share: float) -> None:
        """Adds the tokens of the others in a share of a step."""
        names = contention.tokens if self._only is None else (self._only,)
        for name in names:
            tokens = contention.tokens.get(name)
            if tokens is not None and name != self.request_id:
                self._others.setdefault(self._known(name), Tokens()).add(tokens, share)

    def _charge_wait(self, piece: Piece) -> None:
        cause, seconds = piece.cause, piece.seconds
        contention, request = self._contention, self._request
        if cause == BETWEEN_STEPS or (cause == ARRIVING and contention is None):
            self._add("host", None, cause, seconds)
        elif cause == ARRIVING and contention is not None:
            amounts = {name: tokens.total for name, tokens in contention.tokens.items()}
            self._divide(cause, seconds, amounts, 0.0, "host")
        elif cause in (PACED, "paused", "reserved_blocks"):
            self._add("settings", None, cause, seconds)
        elif is_known_status(cause):
            self._add("itself", None, cause, seconds)
        elif cause in (IN_PROGRESS, UNKNOWN, NOT_RECORDED) or contention is None:
            self._add("unexplained", None, cause, seconds)
        elif piece.head is not None and request is not None and contention.fits(request):
            self._add("request", piece.head, QUEUE_HEAD, seconds)
        else:
            self._charge_holders(piece, "settings")

    def _charge_holders(self, piece: Piece, otherwise: ChargedTo) -> None:
        """Charges a wait to the holders of what is waited for, or else to the limit itself."""
        contention = self._contention
        if contention is None:
            self._add("unexplained", None, piece.cause, piece.seconds)
            return
        holding = contention.holding(piece.cause, self._request).without(self.request_id)
        self._divide(piece.cause, piece.seconds, holding.amounts, holding.num_unnamed, otherwise)

    def _divide(
        self,
        cause: str,
        seconds: float,
        amounts: dict[str, float],
        num_unnamed: float,
        otherwise: ChargedTo,
    ) -> None:
        by_request, unnamed = shares(amounts, num_unnamed)
        if not by_request and not unnamed:
            self._add(otherwise, None, cause, seconds)
        elif self._only is not None:
            self._add("request", self._only, cause, seconds * by_request.get(self._only, 0.0))
        else:
            for name, share in by_request.items():
                self._add("request", name, cause, seconds * share)
            self._add("unexplained", None, UNNAMED_BLOCKS, seconds * unnamed)

    def _add(self, to: ChargedTo, name: str | None, cause: str, seconds: float) -> None:
        if seconds:
            key = to, None if name is None else self._known(name), cause
            self._measured[key] = self._measured.get(key, 0.0) + seconds

    def _known(self, name: str) -> str | None:
        """Returns a name that is told apart, or `None`."""
        if name not in self._names:
            if len(self._names) >= MAX_OTHERS:
                return None
            self._names.add(name)
        return name


_MEASURED: dict[ChargedTo, Evidence] = {
    "itself": "measured",
    "request": "measured",
    "settings": "measured",
    "host": "measured",
    "unexplained": "unexplained",
}


def cost(step_time: StepTime, tokens: Tokens) -> float:
    """Returns the seconds of tokens beyond those of an empty step."""
    return step_time.per_prefill_token * tokens.prefill + step_time.per_decode_token * tokens.decode


def _add_steps(
    sums: dict[_Key, tuple[Tokens, float]], key: _Key, tokens: Tokens, share: float
) -> None:
    known, steps = sums.get(key, (Tokens(), 0.0))
    known.add(tokens, share)
    sums[key] = known, steps + share
