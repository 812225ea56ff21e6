"""Service-level objectives: limits on latencies, and the sequences that exceed them."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

from seqtop.sequence import latency
from seqtop.state.fields import queue_time
from seqtop.state.filter import FilterError, quantity
from seqtop.state.model import RequestState, SequenceState
from seqtop.text import format as fmt

FIGURES = {
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "queue": "Queue",
    "e2e": "E2E",
}
"""The titles of the figures that an objective can limit.

They are the time to first token, inter-token latency, time per output token, time in the queue and
end-to-end latency.
"""


_OPERATOR = re.compile(r"\s*(<=|≤|<|==|=)\s*")
_SEPARATORS = re.compile(r"[,\s]+")


class SloError(ValueError):
    """Invalid objectives; `str()` is one sentence with the reason."""


@dataclass(frozen=True)
class Slo:
    """The limit of each figure of a request in seconds; `None` for no limit.

    `itl` limits the mean time between tokens so far. `tpot` limits the mean from the first token to
    the end, which is known once a request has finished.
    """

    ttft: float | None = None
    itl: float | None = None
    tpot: float | None = None
    queue: float | None = None
    e2e: float | None = None

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """The limits that are set, by figure."""
        return {key: limit for key, limit in asdict(self).items() if limit is not None}

    @property
    def source(self) -> str:
        """The text of which `parse` makes these objectives."""
        return ",".join(f"{key}={limit:.15g}" for key, limit in self.limits.items())

    def __bool__(self) -> bool:
        return bool(self.limits)

    def __str__(self) -> str:
        return ", ".join(f"{FIGURES[key]} ≤ {fmt.seconds(it)}" for key, it in self.limits.items())


def parse(text: str) -> Slo:
    """Parses objectives such as `ttft=0.5,itl=50ms`, separated by commas or spaces.

    The default unit is seconds. `<`, `<=` and `≤` may stand in place of `=`.

    Raises:
        SloError: The text is invalid.
    """
    values: dict[str, float | str] = {}
    for word in words(text):
        key, operator, value = operation(word)
        if not operator:
            raise SloError(f"{word!r} is no objective; write FIGURE=TIME, such as ttft=500ms")
        values[key] = value
    return from_values(values)


class Objective(NamedTuple):
    """Limits, and the percentile of the requests that has to be within them."""

    slo: Slo
    percent: float = 100.0
    """Above 0, and at most 100: each request has to be within the limits."""


def parse_objective(text: str) -> Objective:
    """Parses objectives as `parse` does, with the word `p` for a percentile: `ttft=500ms,p=99`.

    Without it, the limits are those of each request.

    Raises:
        SloError: The text is invalid.
    """
    percent, others = 100.0, []
    for word in words(text):
        key, operator, value = operation(word)
        if key == "p":
            percent = _percent(value) if operator in {"=", "=="} else 0.0
            if not 0 < percent <= 100:
                raise SloError(f"{word!r} is no percentile; write p=99")
        else:
            others.append(word)
    slo = parse(",".join(others))
    if not slo:
        raise SloError("an objective is needed, such as ttft=500ms,p=99")
    return Objective(slo, percent)


def _percent(text: str) -> float:
    """Returns a number that may have a percent sign; 0 for other texts."""
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        return 0.0


def words(text: str) -> list[str]:
    """Returns the words of a text such as `a=1, b = 2`, which commas or spaces separate."""
    return [*filter(None, _SEPARATORS.split(_OPERATOR.sub(r"\1", text)))]


def operation(word: str) -> tuple[str, str, str]:
    """Returns the name, the operator and the value of a word; without one, the last two are empty.

    Names have lower case.
    """
    match = _OPERATOR.search(word)
    if match is None:
        return word.lower(), "", ""
    return word[: match.start()].lower(), match[1], word[match.end() :]


def from_values(values: Mapping[str, float | str]) -> Slo:
    """Creates objectives from values by name, each in seconds or a text with a unit.

    Raises:
        SloError: A name or a value is invalid.
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
    """Returns the figures of a sequence in seconds; an open one is measured up to `now`."""
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
    """Returns the objectives that this sequence has missed, with its figures in seconds."""
    limits = slo.limits
    if not limits:
        return {}
    figures = measured(request, sequence, now)
    return {
        key: value
        for key, limit in limits.items()
        if (value := figures[key]) is not None and value > limit
    }
