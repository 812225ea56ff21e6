"""The kinds of decisions of a scheduler, and how often a recorded run has each.

Recordings test a scheduler only as far as it had to decide in them. So their kinds of decisions are
counted, and those that none has are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from seqtop.history.replay import Reader
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.batch import block_moves, members, num_lookahead_slots
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    PreemptionMode,
    RequestArrived,
    RequestFinished,
    Step,
)

BUNDLED, VLLM = "engine_stub", "vLLM"
"""The first words of `EngineInfo.engine`."""
WATERMARK = 0.01
"""The share of its pool that the bundled scheduler leaves free when it admits."""


class DecisionKind(msgspec.Struct, frozen=True):
    """A kind of decisions."""

    name: str
    title: str
    meaning: str
    """The things that are counted."""
    engines: tuple[str, ...] = (BUNDLED, VLLM)
    """The engines whose schedulers decide it, as far as a recording shows."""


_ONLY_BUNDLED = (BUNDLED,)
_ONLY_VLLM = (VLLM,)

KINDS = (
    DecisionKind("admitted", "admitted", "requests scheduled for the first time"),
    DecisionKind("chunked", "chunked prefill", "prompts that a later step went on with"),
    DecisionKind("mixed", "prefill beside decodes", "steps with both"),
    DecisionKind("batched", "decodes in a batch", "steps that decoded several requests"),
    DecisionKind("prefix_shared", "prefix shared", "admissions that found tokens in the cache"),
    DecisionKind(
        "prefix_ignored",
        "prefix cache not used",
        "admissions for pooling, or for logprobs of the prompt",
        _ONLY_BUNDLED,
    ),
    DecisionKind("evicted", "cached block evicted", "steps that took blocks from the cache"),
    DecisionKind("recomputed", "preempted by recompute", "preemptions that dropped the blocks"),
    DecisionKind("readmitted", "admitted again", "admissions after such a preemption"),
    DecisionKind(
        "preempted_itself",
        "preempted for itself",
        "preemptions of the request in need, which was the last",
        _ONLY_BUNDLED,
    ),
    DecisionKind(
        "swapped_out", "swapped out", "preemptions that moved the blocks to the host", _ONLY_BUNDLED
    ),
    DecisionKind("swapped_in", "swapped in", "admissions after such a preemption", _ONLY_BUNDLED),
    DecisionKind("forked", "forked", "beams that continue another one", _ONLY_BUNDLED),
    DecisionKind("copied", "copied on write", "steps that copied shared blocks", _ONLY_BUNDLED),
    DecisionKind("lookahead", "several tokens a step", "steps with slots for them", _ONLY_BUNDLED),
    DecisionKind("drafted", "speculative", "drafts that a step verified", _ONLY_BUNDLED),
    DecisionKind("seq_limit", "limited by max_num_seqs", "steps that admitted no more for it"),
    DecisionKind(
        "token_budget", "limited by the token budget", "steps that admitted no more for it"
    ),
    DecisionKind("no_blocks", "limited by free blocks", "steps that admitted no more for it"),
    DecisionKind(
        "watermark",
        "limited by the watermark",
        "steps that kept free blocks for running requests",
        _ONLY_BUNDLED,
    ),
    DecisionKind(
        "held_back",
        "held back after a preemption",
        "steps that preempted, and so admitted nobody",
        _ONLY_BUNDLED,
    ),
    DecisionKind(
        "priority", "priority order", "admissions before an earlier request of another priority"
    ),
    DecisionKind("stopped", "finished by a stop", "requests"),
    DecisionKind("length", "finished by length", "requests"),
    DecisionKind("ignored", "ignored", "requests whose prompt is too long", _ONLY_BUNDLED),
    DecisionKind("aborted_running", "aborted while running", "requests"),
    DecisionKind("aborted_waiting", "aborted while waiting", "requests"),
    DecisionKind("aborted_swapped", "aborted while swapped out", "requests", _ONLY_BUNDLED),
    DecisionKind("paused", "paused", "steps that admitted nobody for it", _ONLY_VLLM),
    DecisionKind("cache_reset", "prefix cache reset", "calls from outside", _ONLY_VLLM),
)
"""All kinds, in the order in which they are listed."""

_ENDS = {
    SequenceStatus.FINISHED_STOPPED: "stopped",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_IGNORED: "ignored",
}
_WAITS = frozenset({"seq_limit", "token_budget", "no_blocks", "paused"})


def kinds_of(engine: str) -> list[DecisionKind]:
    """Returns the kinds of decisions of an engine's scheduler; `engine` is `EngineInfo.engine`."""
    name = engine.partition(" ")[0]
    return [kind for kind in KINDS if name in kind.engines]


class _Request(msgspec.Struct):
    """An unfinished request."""

    priority: int
    may_use_cache: bool
    is_waiting: bool = True
    preempted: PreemptionMode | None = None
    """The mode of the preemption after which it waits; `None` for one that has never run."""


class DecisionCounter(Reader):
    """Counts the decisions of a run by their kinds."""

    needs_state = False

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """The numbers of decisions by `DecisionKind.name`."""
        self._info: EngineInfo | None = None
        self._requests: dict[str, _Request] = {}
        """In order of arrival."""
        self._priorities: set[int] = set()

    def start(self, position: int, state: EngineState) -> None:
        """Takes the requests of a state: those that arrived before the first step."""
        self._info = state.info or self._info
        for request in state.requests.values():
            if request.finish_reason is None:
                params = request.sampling_params
                may_use_cache = params is not None and params.prompt_logprobs is None
                self._add(request.request_id, request.priority, may_use_cache=may_use_cache)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Counts the decisions of an event."""
        match event:
            case EngineInfo():
                self._info = event
            case RequestArrived(sampling_params=params):
                may_use_cache = params is not None and params.prompt_logprobs is None
                self._add(event.request_id, event.priority, may_use_cache=may_use_cache)
            case Step():
                self._step(event)
            case RequestFinished():
                self._finish(event)

    @property
    def _is_speculative(self) -> bool:
        settings = self._info.scheduler_settings if self._info is not None else {}
        return settings.get("speculative") is not None

    def _add(self, request_id: str, priority: int, *, may_use_cache: bool) -> None:
        self._requests[request_id] = _Request(priority, may_use_cache)
        self._priorities.add(priority)

    def _finish(self, event: RequestFinished) -> None:
        request = self._requests.pop(event.request_id, None)
        if event.status is not SequenceStatus.FINISHED_ABORTED:
            self.counts[_ENDS.get(event.status, "")] += 1
        elif request is None or not request.is_waiting:
            self.counts["aborted_running"] += 1
        else:
            is_swapped = request.preempted == "swap"
            self.counts["aborted_swapped" if is_swapped else "aborted_waiting"] += 1

    def _step(self, step: Step) -> None:
        counts = self.counts
        for preemption in step.preemptions:
            counts["swapped_out" if preemption.mode == "swap" else "recomputed"] += 1
            counts["preempted_itself"] += preemption.for_request_id == preemption.request_id
            if (own := self._requests.get(preemption.request_id)) is not None:
                own.is_waiting, own.preempted = True, preemption.mode
        decoded, has_prefill = self._count_batch(step)
        counts["batched"] += len(decoded) > 1
        counts["mixed"] += bool(decoded) and has_prefill
        for update in step.sequences:
            counts["forked"] += update.parent_seq_id is not None
            counts["drafted"] += update.num_draft_tokens is not None
        counts["lookahead"] += num_lookahead_slots(step) > 0 and not self._is_speculative
        counts["copied"] += bool(block_moves(step).copied)
        counts["evicted"] += bool(step.uncached_blocks)
        counts["cache_reset"] += sum(own.name == "reset_prefix_cache" for own in step.control_calls)
        self._count_waits(step)

    def _count_batch(self, step: Step) -> tuple[set[str], bool]:
        """Counts who is in the batch; returns who decodes, and whether there is prefill."""
        decoded: set[str] = set()
        seen: set[str] = set()
        has_prefill = False
        for member in members(step):
            if member.is_prompt:
                has_prefill = True
            else:
                decoded.add(member.request_id)
            request = self._requests.get(member.request_id)
            if request is None or member.request_id in seen:
                continue
            seen.add(member.request_id)
            if request.is_waiting:
                self._admit(request, member.num_cached_tokens or 0)
            elif member.is_prompt:
                self.counts["chunked"] += 1
        return decoded, has_prefill

    def _admit(self, request: _Request, num_cached: int) -> None:
        request.is_waiting = False
        if request.preempted == "swap":
            self.counts["swapped_in"] += 1
        else:
            self.counts["admitted" if request.preempted is None else "readmitted"] += 1
            self.counts["prefix_shared"] += num_cached > 0
            is_on = self._info is not None and self._info.enable_prefix_caching
            self.counts["prefix_ignored"] += is_on and not request.may_use_cache
        if len(self._priorities) > 1:
            earlier = takewhile(lambda other: other is not request, self._requests.values())
            self.counts["priority"] += any(
                other.is_waiting and other.priority != request.priority for other in earlier
            )

    def _count_waits(self, step: Step) -> None:
        info = self._info
        for reason in step.wait_reasons:
            if reason.cause not in _WAITS:
                continue
            name: str = reason.cause
            if info is not None and name == "no_blocks" and info.engine.startswith(BUNDLED):
                if not reason.num_missing:
                    name = "held_back"
                elif reason.num_missing <= int(WATERMARK * info.num_gpu_blocks):
                    name = "watermark"
            self.counts[name] += 1
