"""What the publisher's process knows of each request, and how V1's terms read in ours."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from seqtop.adapters.vllm.notes import Arrived
from seqtop.sequence import RequestMetrics, SamplingParams, SequenceStatus

_RANDOM_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_MAX_NAMES: Final = 100_000

_ENDS: Final = {
    "FINISHED_STOPPED": SequenceStatus.FINISHED_STOPPED,
    "FINISHED_LENGTH_CAPPED": SequenceStatus.FINISHED_LENGTH_CAPPED,
    "FINISHED_ABORTED": SequenceStatus.FINISHED_ABORTED,
    "FINISHED_IGNORED": SequenceStatus.FINISHED_IGNORED,
    "FINISHED_REPETITION": SequenceStatus.FINISHED_STOPPED,
}


def end_status(name: str) -> SequenceStatus:
    """Ours for an end of V1's; one that we have no word for, `FINISHED_ERROR` say, is an abort."""
    return _ENDS.get(name, SequenceStatus.FINISHED_ABORTED)


def engine_status(name: str) -> str:
    """What `SequenceUpdate.engine_status` is to say: nothing where `status` says the same."""
    says_more = name not in ("WAITING", "RUNNING", *SequenceStatus.__members__)
    return name if says_more else ""


def sampling_params(fields: dict[str, Any] | None) -> SamplingParams | None:
    """V1's parameters as V0's, as far as those have them; `None` where they contradict."""
    if fields is None:
        return None
    try:
        return SamplingParams(**{name: each for name, each in fields.items() if each is not None})
    except (TypeError, ValueError):
        return None


@dataclass(slots=True)
class Request:
    """An unfinished request, as viewers know it."""

    seq_id: int
    name: str
    num_prompt_tokens: int
    metrics: RequestMetrics
    skip_special_tokens: bool = True
    status: SequenceStatus = SequenceStatus.WAITING
    engine_status: str = ""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    is_prefill: bool = True
    """Whether it has sampled nothing since it was last admitted."""

    @classmethod
    def of(cls, note: Arrived, seq_id: int, name: str, params: SamplingParams | None) -> Request:
        metrics = RequestMetrics(
            arrival_time=note.arrival_time,
            last_token_time=note.arrival_time,
            first_scheduled_time=None,
            first_token_time=None,
            time_in_queue=None,
        )
        return cls(
            seq_id=seq_id,
            name=name,
            num_prompt_tokens=note.num_prompt_tokens,
            metrics=metrics,
            skip_special_tokens=params is None or params.skip_special_tokens,
            engine_status=engine_status(note.status),
        )


class Names:
    """Names for requests: the user's own, unless it has been used before."""

    def __init__(self, *, has_random_suffix: bool) -> None:
        self._has_random_suffix = has_random_suffix
        self._given: OrderedDict[str, None] = OrderedDict()

    def of(self, request_id: str) -> str:
        """The name for vLLM's internal `request_id`, which is unique itself."""
        name = request_id
        if self._has_random_suffix:
            name = _RANDOM_SUFFIX.sub("", request_id)
        if name in self._given:
            name = request_id
        self._given[name] = None
        if len(self._given) > _MAX_NAMES:
            self._given.popitem(last=False)
        return name
