"""The publisher's record of each request, and the conversion of V1's statuses and parameters."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from seqtop.adapters.observations import Arrived, CurrentRequest, RequestEnded
from seqtop.prefix_cache.token_hashes import TokenHashes
from seqtop.sequence import (
    RequestMetrics,
    SamplingParams,
    SequenceDataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.sequence.names import MAX_NAME_LENGTH

_RANDOM_SUFFIX: Final = re.compile(r"-[0-9a-f]{8}$")
_MAX_NAMES: Final = 100_000

_ENDS: Final = {
    "FINISHED_STOPPED": SequenceStatus.FINISHED_STOPPED,
    "FINISHED_LENGTH_CAPPED": SequenceStatus.FINISHED_LENGTH_CAPPED,
    "FINISHED_ABORTED": SequenceStatus.FINISHED_ABORTED,
    "FINISHED_IGNORED": SequenceStatus.FINISHED_IGNORED,
    "FINISHED_REPETITION": SequenceStatus.FINISHED_STOPPED,
}


_UNAWARE_OF_STOP: Final = ("FINISHED_ABORTED", "FINISHED_LENGTH_CAPPED")
"""Statuses with which a scheduler ends a request in whose text there is a stop string."""


def end_status(name: str) -> SequenceStatus:
    """Returns the status for a finished status of V1; for an unknown one, that of an abort."""
    return _ENDS.get(name, SequenceStatus.FINISHED_ABORTED)


def engine_status(name: str) -> str:
    """Returns `SequenceUpdate.engine_status`: empty if `status` has the same information."""
    is_specific = name not in ("WAITING", "RUNNING", *SequenceStatus.__members__)
    return name if is_specific else ""


def sampling_params(fields: dict[str, Any] | None) -> SamplingParams | None:
    """Converts V1's sampling parameters to V0's; `None` if V0 refuses them."""
    if fields is None:
        return None
    try:
        given = {name: value for name, value in fields.items() if value is not None}
        return SamplingParams(**given)
    except (TypeError, ValueError):
        return None


@dataclass(slots=True)
class PublishedRequest:
    """An unfinished request, as published so far."""

    seq_id: int
    name: str
    num_prompt_tokens: int
    metrics: RequestMetrics
    lora: str = ""
    skip_special_tokens: bool = True
    status: SequenceStatus = SequenceStatus.WAITING
    engine_status: str = ""
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_external_tokens: int = 0
    num_output_tokens: int = 0
    end_time: float | None = None
    """The time at which the scheduler freed it. A KV connector may still hold its blocks."""
    was_scheduled: bool = False
    is_prefill: bool = True
    """True until it samples a token after its last admission."""
    token_ids: list[int] = field(default_factory=list)
    """Prompt and output; empty for a prompt of embeddings."""
    token_hashes: TokenHashes = field(default_factory=TokenHashes)
    num_tokens_in_deltas: int = 0
    """The output tokens that deltas have contained."""
    stop: list[str] = field(default_factory=list)
    """Stop strings that a front end looks for, and not the scheduler."""
    min_tokens: int = 0
    """The output tokens among which no stop string counts."""
    found_stop: str | None = None
    """The stop string that is in the output."""
    text_end: str = ""
    """The end of the output's text, in which a stop string may have begun."""

    def add_text(self, text: str) -> None:
        """Looks for stop strings in new text of the output."""
        if not self.stop or self.found_stop is not None:
            return
        if self.num_output_tokens > self.min_tokens:
            self.text_end += text
            found = [stop for stop in self.stop if stop in self.text_end]
            self.found_stop = min(found, key=self.text_end.find, default=None)
        longest = max(map(len, self.stop))
        self.text_end = self.text_end[-longest + 1 :] if longest > 1 else ""

    def end(self, ended: RequestEnded) -> int | str | None:
        """Ends the request; returns the reason for a stop.

        vLLM's front end aborts a request in whose text it has found a stop string, and tells its
        client that it has stopped, also if the scheduler has ended it at its last token meanwhile.
        """
        self.end_time = ended.time
        if ended.status in _UNAWARE_OF_STOP and self.found_stop is not None:
            self.status, self.engine_status = SequenceStatus.FINISHED_STOPPED, ""
            return self.found_stop
        self.status, self.engine_status = end_status(ended.status), engine_status(ended.status)
        return ended.stop_reason

    def take_delta(self) -> SequenceDataDelta:
        """Returns what has changed since the last delta, as vLLM's V0 engine does."""
        new_ids = self.token_ids[self.num_prompt_tokens + self.num_tokens_in_deltas :]
        self.num_tokens_in_deltas += len(new_ids)
        stage = SequenceStage.PREFILL if self.is_prefill else SequenceStage.DECODE
        return SequenceDataDelta(new_ids, 0.0, self.num_computed_tokens, stage)

    def without_drafts(self, num_computed_tokens: int) -> int:
        """Returns computed tokens without drafts that are in flight, which engines count, too."""
        return min(num_computed_tokens, self.num_prompt_tokens + self.num_output_tokens)

    def set_prompt(self, token_ids: list[int]) -> None:
        """Replaces all tokens by those of a new prompt."""
        self.num_prompt_tokens, self.num_output_tokens = len(token_ids), 0
        self.token_ids, self.token_hashes = list(token_ids), TokenHashes()
        self.num_tokens_in_deltas = 0

    @classmethod
    def of(
        cls,
        observation: Arrived,
        seq_id: int,
        name: str,
        params: SamplingParams | None,
        *,
        is_stopped_outside: bool = False,
    ) -> PublishedRequest:
        """Creates the record of a request that has arrived.

        Args:
            observation: Its arrival.
            seq_id: The id of its sequence.
            name: Its id in viewers.
            params: Its sampling parameters.
            is_stopped_outside: True if a front end looks for stop strings, and not the scheduler.
        """
        metrics = RequestMetrics(
            arrival_time=observation.arrival_time,
            last_token_time=observation.arrival_time,
            first_scheduled_time=None,
            first_token_time=None,
            time_in_queue=None,
        )
        return cls(
            seq_id=seq_id,
            name=name,
            num_prompt_tokens=observation.num_prompt_tokens,
            metrics=metrics,
            lora=observation.lora,
            skip_special_tokens=params is None or params.skip_special_tokens,
            engine_status=engine_status(observation.status),
            token_ids=list(observation.prompt_token_ids),
            stop=[stop for stop in (params.stop or []) if stop]
            if params is not None and is_stopped_outside
            else [],
            min_tokens=params.min_tokens if params is not None else 0,
        )

    def set_current(self, current: CurrentRequest) -> None:
        """Takes over the state of the engine. Times and prefix hits from before stay unknown."""
        status = current.arrived.status
        self.num_prompt_tokens = current.arrived.num_prompt_tokens
        self.num_output_tokens = len(current.output_token_ids)
        self.token_ids = [*current.arrived.prompt_token_ids, *current.output_token_ids]
        self.token_hashes = TokenHashes()
        self.num_tokens_in_deltas = self.num_output_tokens
        self.num_computed_tokens = self.without_drafts(current.num_computed_tokens)
        self.was_scheduled = current.was_scheduled
        self.engine_status = engine_status(status)
        if current.is_running:
            self.status = SequenceStatus.RUNNING
        elif current.is_swapped:
            self.status = SequenceStatus.SWAPPED
        elif status.startswith("FINISHED_"):
            self.status = end_status(status)
        else:
            self.status = SequenceStatus.WAITING
        num_known = self.num_prompt_tokens + self.num_output_tokens
        self.is_prefill = not self.num_output_tokens or self.num_computed_tokens < num_known - 1


class Names:
    """Assigns the user's id to each request, unless it has been used before.

    Args:
        has_random_suffix: True if ids end with characters that the user has not given.
    """

    def __init__(self, *, has_random_suffix: bool) -> None:
        self._has_random_suffix = has_random_suffix
        self._assigned: OrderedDict[str, int] = OrderedDict()
        """By name, the requests that have asked for it."""

    def of(self, request_id: str) -> str:
        """Returns the name for an internal request id: another one for each request."""
        name = shortened(request_id)
        if self._has_random_suffix:
            name = shortened(_RANDOM_SUFFIX.sub("", request_id))
        if name in self._assigned:
            name = first = shortened(request_id)
            while name in self._assigned:
                self._assigned[first] += 1
                name = shortened(f"{request_id}-{self._assigned[first]}")
        self._assigned[name] = 1
        if len(self._assigned) > _MAX_NAMES:
            self._assigned.popitem(last=False)
        return name


def shortened(request_id: str) -> str:
    """Returns an id that viewers accept; of a longer one, which clients may send, its beginning."""
    if len(request_id) <= MAX_NAME_LENGTH:
        return request_id
    digest = hashlib.sha256(request_id.encode(errors="replace")).hexdigest()
    return f"{request_id[: MAX_NAME_LENGTH - len(digest)]}{digest}"
