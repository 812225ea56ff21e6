"""Service-level objectives: how long a request may take, and who has taken longer."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from seqtop import format as fmt
from seqtop.sequence import latency
from seqtop.state.fields import queue_time
from seqtop.state.filter import FilterError, quantity
from seqtop.state.model import RequestState, SequenceState

FIGURES = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "queue": "Queue",
    "e2e": "E2E",
}
"""What can be limited, and its title: time to first token, inter-token latency, time per output
token, time in the queue, end-to-end latency."""


class SloError(ValueError):
    """Objectives that cannot be understood; `str()` is one sentence that says why."""


@dataclass(frozen=True)
class Slo:
    """The most seconds each figure of a request may be; `None` where it does not matter.

    `itl` holds for the mean time between tokens so far, `tpot` for that from the first token to
    the end, as it is known once a request has ended.
    """

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    queue: float | None = None
    e2e: float | None = None

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """Those that are set."""
        return {key: limit for key, limit in asdict(self).items() if limit is not None}

    def __bool__(self) -> bool:
        return bool(self.limits)

    def __str__(self) -> str:
        return ", ".join(f"{FIGURES[key]} ≤ {fmt.seconds(it)}" for key, it in self.limits.items())


def parse(text: str) -> Slo:
    """Objectives as typed, such as `ttft=0.5,itl=50ms`; seconds where no unit is given.

    Raises:
        SloError: it cannot be understood.
    """
    values: dict[str, float | str] = {}
    for word in filter(None, text.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise SloError(f"{word.strip()!r} is not like ttft=0.5")
        values[key.strip()] = value.strip()
    return from_values(values)


def from_values(values: Mapping[str, float | str]) -> Slo:
    """Objectives by name, each seconds or a text with a unit.

    Raises:
        SloError: a name or a value cannot be.
    """
    limits: dict[str, float] = {}
    for key, value in values.items():
        if key not in FIGURES:
            raise SloError(f"no objective {key!r}: there are {', '.join(FIGURES)}")
        try:
            seconds = quantity(value) if isinstance(value, str) else float(value)
        except FilterError as error:
            raise SloError(f"{key}: {error}") from error
        if seconds is None or not 0 < seconds < float("inf"):
            raise SloError(f"{key}: {value!r} is not a time, such as 0.5 or 500ms")
        limits[key] = seconds
    return Slo(**limits)


def measured(request: RequestState, sequence: SequenceState, now: float) -> dict[str, float | None]:
    """Each figure in seconds: what it is, or what it has come to by now if that is still open."""
    metrics = request.metrics
    num_tokens = len(sequence.output_token_ids)
    ended = request.finish_reason is not None
    waited = None if ended else now - metrics.arrival_time
    first, end = latency.ttft(metrics), latency.e2e_latency(metrics)
    return {
        "ttft": waited if first is None else first,
        "itl": latency.itl_so_far(metrics, num_tokens),
        "tpot": latency.itl(metrics, num_tokens),
        "queue": queue_time(request, sequence, now),
        "e2e": waited if end is None else end,
    }


def missed(
    slo: Slo, request: RequestState, sequence: SequenceState, now: float
) -> dict[str, float]:
    """What of `slo` this sequence has missed, and the seconds it has come to."""
    limits = slo.limits
    if not limits:
        return {}
    figures = measured(request, sequence, now)
    return {
        key: value
        for key, limit in limits.items()
        if (value := figures[key]) is not None and value > limit
    }
