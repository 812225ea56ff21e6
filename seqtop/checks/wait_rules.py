"""The rule on reasons to wait: the engine's own figures must not contradict them."""

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.wait_causes import CAUSES, SESSION_INPUT, head_reason
from seqtop.text.format import plural
from seqtop.wire.messages import EngineInfo, Event, RequestFinished, Step, StepStats

_RUNNING = SequenceStatus.RUNNING
_WATERMARK = 0.01
"""The least share of the pool that an engine may leave free when it admits a request. The setting
`watermark` of vLLM may be larger."""
_EVICTS_FOR_WAITING = "evicts_for_waiting_requests"
"""The setting that says whether cached blocks are evicted for waiting requests, as in most engines.
transformers evicts them for running ones only."""


class WaitRules(RuleGroup):
    """The rule on the reason of the head of the queue, for which all requests behind it wait.

    The figures of a step are those of its end, the reason is that of its scheduling. They belong
    together if nothing ends, is admitted or is preempted in this step and in the one before. Only
    such steps count. (With asynchronous scheduling, the reason is that of the next step.)

    Args:
        state: The state of the engine.
        thresholds: The amounts from which on there is a finding.
    """

    def __init__(self, state: EngineState, thresholds: Thresholds) -> None:
        super().__init__(state)
        self._thresholds = thresholds
        self._is_quiet = self._was_quiet = False
        """True if the current step, and the one before it, count."""
        self._num_contradicted = 0
        """Steps whose figures contradict the reason, without one between whose figures do not."""
        self._is_reported = False

    def before(self, event: Event) -> Iterator[Finding]:
        """Finds out whether the figures of a step are those of its scheduling."""
        if isinstance(event, Step):
            self._was_quiet, self._is_quiet = self._is_quiet, self._changes_nothing(event)
        elif isinstance(event, RequestFinished):
            self._is_quiet = False
        yield from ()

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the reason of the head of the queue."""
        if isinstance(event, Step):
            yield from self._wait_reason(event)

    def _changes_nothing(self, step: Step) -> bool:
        if step.preemptions or not step.wait_reasons:
            return False
        for update in step.sequences:
            if update.is_removed or update.parent_seq_id is not None:
                return False
            if update.status is not None and update.status is not _RUNNING:
                return False
        sequences = self.state.sequences
        return all(
            (sequence := sequences.get(member.seq_id)) is not None and sequence.status is _RUNNING
            for member in self.members
        )

    @rule(
        "wait-reason",
        "the engine's own figures contradict the reason for which requests wait",
        "warning",
    )
    def _wait_reason(self, step: Step) -> Iterator[Finding]:
        reason = head_reason(step.wait_reasons)
        request = self.state.requests.get(reason.request_id) if reason is not None else None
        if reason is None or request is None:
            self._num_contradicted, self._is_reported = 0, False
            return
        if not (self._is_quiet and self._was_quiet):
            return
        contradiction = self._contradiction(reason.cause, request, num_reserved=0)
        self._num_contradicted = self._num_contradicted + 1 if contradiction else 0
        self._is_reported &= bool(contradiction)
        if self._num_contradicted < self._thresholds.contradicted_steps or self._is_reported:
            return
        # Only now, since it looks at all requests.
        contradiction = self._contradiction(reason.cause, request, self._num_reserved_slots())
        if not contradiction:
            self._num_contradicted = 0
            return
        self._is_reported = True
        cause = CAUSES[reason.cause]
        yield self.of_engine(
            f"it is the first of {plural(self._num_waiting(), 'waiting sequence')} for the reason"
            f' "{cause.label}", which the figures of {plural(self._num_contradicted, "step")}'
            f" contradict: {contradiction}",
            request_id=request.request_id,
        )

    def _contradiction(self, cause: str, request: RequestState, num_reserved: int) -> str:
        """Describes the figures that contradict a reason; empty if they do not.

        Args:
            cause: The reason.
            request: The request that waits.
            num_reserved: Sequence slots that are reserved for sequences that do not run.
        """
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None:
            return ""
        sequences = [self.state.sequences[seq_id] for seq_id in request.seq_ids]
        waiting = [own for own in sequences if not SequenceStatus.is_finished(own.status)]
        match cause:
            case "no_blocks":
                return _available_blocks(stats, info, waiting)
            case "seq_limit":
                num_running = stats.num_running + num_reserved
                width = max(len(waiting), _beam_width(request))
                if num_running + width <= info.max_num_seqs:
                    return (
                        f"{num_running} of {plural(info.max_num_seqs, 'sequence')} run, and it has"
                        f" {width}"
                    )
            case "token_budget":
                num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
                budget = info.max_num_batched_tokens
                needed = len(waiting)
                if not info.enable_chunked_prefill:
                    needed = sum(sequence.num_tokens for sequence in waiting)
                if budget is not None and num_tokens + needed <= budget:
                    return (
                        f"{num_tokens} of {plural(budget, 'token')} are computed, and it needs"
                        f" {needed}"
                    )
        return ""

    def _num_reserved_slots(self) -> int:
        """Returns the slots that no running sequence has, and no other may have."""
        num_reserved = 0
        for request in self.state.requests.values():
            if request.finish_reason is not None:
                continue
            sequences = [self.state.sequences[seq_id] for seq_id in request.seq_ids]
            num_running = sum(sequence.status is _RUNNING for sequence in sequences)
            if num_running:
                num_reserved += max(_beam_width(request) - num_running, 0)
            num_reserved += sum(sequence.engine_status == SESSION_INPUT for sequence in sequences)
        return num_reserved

    def _num_waiting(self) -> int:
        counts = self.state.num_by_status
        return counts[SequenceStatus.WAITING] + counts[SequenceStatus.SWAPPED]


def _available_blocks(stats: StepStats, info: EngineInfo, waiting: list[SequenceState]) -> str:
    if info.block_size < 1:
        return ""
    available = stats.num_free_blocks
    if info.scheduler_settings.get(_EVICTS_FOR_WAITING, True):
        available += stats.num_cached_blocks or 0
    # One block of each sequence for lookahead slots, or to copy one that it shares.
    needed = sum(1 - -sequence.num_tokens // info.block_size for sequence in waiting)
    needed *= max(len(info.kv_cache_groups), 1)
    setting = info.scheduler_settings.get("watermark")
    watermark = max(_WATERMARK, setting if isinstance(setting, int | float) else 0.0)
    reserve = int(watermark * info.num_gpu_blocks)
    if available < needed + reserve:
        return ""
    return f"{plural(available, 'block')} are available, and it needs at most {needed + reserve}"


def _beam_width(request: RequestState) -> int:
    """Returns the sequences that a beam search may have; 0 for other requests."""
    params = request.sampling_params
    width = (params.extra_args or {}).get("beam_width", 0) if params is not None else 0
    return width if isinstance(width, int) else 0
