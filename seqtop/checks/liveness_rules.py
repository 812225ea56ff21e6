"""Rules on progress: requests that are stuck, overtaken, or preempted again and again.

A correct engine may break a rule with a threshold for a short time, so these are warnings.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from seqtop.checks.finding import Finding
from seqtop.checks.outside_waits import OutsideWaits, holds_blocks, is_unfinished, sequences_of
from seqtop.checks.rules import RuleGroup, rule
from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.block_index import has_positions
from seqtop.state.holdings import num_available_blocks, num_blocks
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.resources import full_resources
from seqtop.state.sort_key import arrival_in_queue, has_priorities, holders_are_first
from seqtop.state.wait_causes import CAUSES, OWN_TURN, describe_reason
from seqtop.text.format import plural
from seqtop.wire.batch import scheduled_requests
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    Heartbeat,
    NotPublished,
    RequestArrived,
    RequestFinished,
    Step,
    StreamingUpdate,
)

_MAX_COMPARED = 64
"""Waiting requests of a kind that are compared with each admission."""
_SWEEPS = 4
"""Looks at every running sequence in as many steps as make one stalled."""
_STEPS_TO_REFUSE = 2
"""Steps in which an engine may still refuse a request that it has announced."""


class _Waiting(msgspec.Struct):
    """A request that waits to be scheduled, for the first time or again."""

    since: float
    """The engine's time at its arrival or preemption."""
    preempted_at: int | None = None
    """The step of the preemption; `None` for a request that has never been scheduled."""
    num_overtaken: int = 0
    """Admissions of later requests since then."""
    is_reported: bool = False


class _Gain(msgspec.Struct):
    """A preemption, and what the request had gained by then."""

    step: int
    num_output_tokens: int
    num_lost_tokens: int
    num_recomputed_tokens: int
    """Tokens that had been lost by the preemption before, and were computed again."""


class _Progress(msgspec.Struct):
    """The progress of a running sequence at the last sweep in which it had advanced."""

    amount: tuple[int, int, int]
    """Computed tokens, output tokens, preemptions."""
    num_batches: int
    time: float
    is_reported: bool = False


class LivenessRules(RuleGroup):
    """Rules on requests that do not advance.

    Args:
        state: The state of the engine.
        thresholds: The amounts from which on there is a finding.
        outside: The waits for something other than a turn, which are progress until their limits.
    """

    def __init__(self, state: EngineState, thresholds: Thresholds, outside: OutsideWaits) -> None:
        super().__init__(state)
        self._thresholds = thresholds
        self._outside = outside
        self._num_empty_steps = 0
        """Steps in a row that computed nothing while requests were unfinished."""
        self._progress_time = state.time
        """The engine's time at the last progress."""
        self._is_stuck = False
        """True if the present lack of progress has been reported."""
        self._new: dict[int, dict[str, _Waiting]] = {}
        """Requests that have not been scheduled, by priority, in order of arrival."""
        self._preempted: dict[str, _Waiting] = {}
        """Requests that wait to be scheduled again."""
        self._preemptions: dict[str, list[_Gain]] = {}
        """The last preemptions of each unfinished request."""
        self._num_found: dict[str, int] = {}
        """The tokens of each request preempted by the current step that had been prefix hits."""
        self._held_blocks: set[str] = set()
        """The waiting requests in the batch of the current step that held blocks before it."""
        self._oversized: dict[str, int] = {}
        """Unfinished requests whose prompt is larger than the pool, with the step of arrival."""
        self._num_batches = self._swept_at = 0
        """Steps that computed something, and their number at the last sweep."""
        self._running: dict[int, _Progress] = {}
        """The progress of each running sequence, as of the last sweep."""
        for request in state.requests.values():
            if request.finish_reason is None:
                self._add(request)

    @property
    def _num_unfinished(self) -> int:
        return len(self.state.requests) - len(self.state.finished)

    def before(self, event: Event) -> Iterator[Finding]:
        """Records what requests had before a step that preempts or admits them."""
        self._num_found = {}
        if isinstance(event, Step) and (self._new or self._preempted):
            self._held_blocks = {
                request_id
                for request_id in scheduled_requests(event)
                if (request := self.state.requests.get(request_id)) is not None
                and self._is_waiting(request)
                and self._holds_blocks(request)
            }
        for preemption in event.preemptions if isinstance(event, Step) else ():
            if request := self.state.requests.get(preemption.request_id):
                self._num_found[request.request_id] = sum(
                    self.state.sequences[seq_id].num_cached_tokens for seq_id in request.seq_ids
                )
        yield from ()

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the progress of the engine and of its waiting requests."""
        match event:
            case Step():
                yield from self._step(event)
            case Heartbeat():
                seconds = self.state.time - self._progress_time
                if seconds >= self._thresholds.no_progress_seconds:
                    yield from self._no_progress()
            case RequestArrived():
                if request := self.state.requests.get(event.request_id):
                    if self._num_unfinished == 1:
                        self._restart_clock(self.state.time)
                    self._add(request)
            case StreamingUpdate():
                if request := self.state.requests.get(event.request_id):
                    self._add(request)
            case RequestFinished():
                self._remove(event.request_id)
            case EngineInfo() | NotPublished():  # what was not published may be progress
                self._restart_clock(self.state.time)

    def _step(self, step: Step) -> Iterator[Finding]:
        yield from self._overtaken(self._admit(step))
        stats = step.stats
        has_batch = any(True for _ in scheduled_requests(step))
        has_tokens = stats.num_prefill_tokens + stats.num_decode_tokens > 0
        if has_batch or has_tokens or not self._num_unfinished:
            self._restart_clock(step.time)
            self._num_batches += has_batch or has_tokens
        else:
            self._num_empty_steps += 1
            is_long = step.time - self._progress_time >= self._thresholds.empty_seconds
            if is_long and self._num_empty_steps >= self._thresholds.no_progress_steps:
                yield from self._no_progress()
        for preemption in step.preemptions:
            if request := self.state.requests.get(preemption.request_id):
                yield from self._thrash(request, step, preemption.num_lost_tokens)
                self._preempted[request.request_id] = _Waiting(step.time, step.step)
        yield from self._never_fits(step)
        # Seldom, so that not every step takes time for each sequence.
        if self._num_batches - self._swept_at >= self._thresholds.stalled_steps / _SWEEPS:
            self._swept_at = self._num_batches
            yield from self._stalled()

    def _admit(self, step: Step) -> list[RequestState]:
        """Removes the requests in the batch of a step from those that wait, and returns them."""
        admitted: list[RequestState] = []
        for request_id in scheduled_requests(step):
            request = self.state.requests.get(request_id)
            if request is not None and self._remove_waiting(request):
                admitted.append(request)
        return admitted

    def _is_waiting(self, request: RequestState) -> bool:
        new = self._new.get(request.priority, {})
        return request.request_id in new or request.request_id in self._preempted

    def _holds_blocks(self, request: RequestState) -> bool:
        return any(map(holds_blocks, sequences_of(self.state, request)))

    def _remove_waiting(self, request: RequestState) -> bool:
        queue = self._new.get(request.priority, {})
        waiting = queue.pop(request.request_id, None) or self._preempted.pop(
            request.request_id, None
        )
        if not queue:
            self._new.pop(request.priority, None)
        return waiting is not None

    def _restart_clock(self, time: float) -> None:
        self._num_empty_steps, self._progress_time, self._is_stuck = 0, time, False

    # --- Nothing advances

    @rule("no-progress", "requests are unfinished, and the engine computes nothing", "warning")
    def _no_progress(self) -> Iterator[Finding]:
        seconds = self.state.time - self._progress_time
        if self._is_stuck or not self._num_unfinished or self._outside.lasts():
            return
        stuck = [
            request
            for request in self.state.requests.values()
            if is_unfinished(self.state, request) and self._waits_for_its_turn(request)
        ]
        reasons = (self.state.requests.get(request_id) for request_id in self.state.wait_reason_ids)
        is_paused = any(
            request and request.wait_reason and request.wait_reason.cause == "paused"
            for request in reasons
        )
        if is_paused or not stuck:  # all wait for something that the scheduler does not decide
            self._restart_clock(self.state.time)
            return
        self._is_stuck = True
        head = next((request for request in stuck if request.wait_reason is not None), stuck[0])
        unfinished = f"{plural(len(stuck), 'request')} unfinished"
        if self._num_empty_steps:
            message = (
                f"{self._num_empty_steps} steps and {seconds:.1f} s without a computed token;"
                f" {unfinished}{self._figures(head)}"
            )
        else:
            after = f"after step {self.state.step}" if self.state.step >= 0 else "since the start"
            message = f"no step has ended for {seconds:.1f} s ({after}); {unfinished}"
        yield self.of_engine(message, request_id=head.request_id)

    def _figures(self, head: RequestState) -> str:
        """Describes who runs, what is used up, and what the first request holds and misses."""
        stats, info = self.state.stats, self.state.info
        if stats is None or info is None:
            return ""
        text = f", {stats.num_running} run{' and get no token' if stats.num_running else ''}"
        if full := full_resources(self.state):
            text += f"; {', '.join(full)}"
        reason = head.wait_reason
        if reason is not None and reason.cause not in ("no_blocks", "reserved_blocks"):
            return f"{text}; the first request waits: {describe_reason(reason, info)}"
        if info.block_size < 1 or (reason is None and full):
            return text
        available = num_available_blocks(self.state) or 0
        sequences = [self.state.sequences[seq_id] for seq_id in head.seq_ids]
        held = num_blocks(self.state, head)
        missing = 0 if reason is None else reason.num_missing
        if missing <= 0:
            need = sum(-(-sequence.num_tokens // info.block_size) for sequence in sequences)
            missing = max(need - held, 0)
        holds = f"holds {held} and " if held else ""
        needs = "misses" if reason is not None and reason.num_missing > 0 else "needs"
        more = " more" if held and needs == "needs" else ""
        return (
            f"{text}; {plural(available, 'block')} available, the first request"
            f" {holds}{needs} {missing}{more}"
        )

    def _waits_for_its_turn(self, request: RequestState) -> bool:
        if request.wait_reason and not CAUSES[request.wait_reason.cause].is_for_turn:
            return False
        sequences = map(self.state.sequences.get, request.seq_ids)
        return any(
            sequence is not None
            and sequence.engine_status in OWN_TURN
            # One that was aborted before it got a block may still be held by a KV connector.
            and not SequenceStatus.is_finished(sequence.status)
            for sequence in sequences
        )

    # --- One request does not advance

    @rule("stalled", "a running sequence does not advance while others do", "warning")
    def _stalled(self) -> Iterator[Finding]:
        before, self._running = self._running, {}
        for request in self.state.requests.values():
            for seq_id in request.seq_ids if request.finish_reason is None else ():
                sequence = self.state.sequences[seq_id]
                if sequence.status is SequenceStatus.RUNNING:
                    yield from self._advance(request, sequence, before.get(seq_id))

    def _advance(
        self, request: RequestState, sequence: SequenceState, last: _Progress | None
    ) -> Iterator[Finding]:
        """Compares a running sequence with its progress at an earlier sweep."""
        num_computed, num_output = sequence.num_computed_tokens, len(sequence.output_token_ids)
        amount = (num_computed, num_output, request.num_preemptions)
        if last is None or last.amount != amount:
            last = _Progress(amount, self._num_batches, self.state.time)
        self._running[sequence.seq_id] = last
        seconds, num_batches = self.state.time - last.time, self._num_batches - last.num_batches
        if (
            last.is_reported
            or sequence.engine_status not in OWN_TURN
            or seconds < self._thresholds.stalled_seconds
            or num_batches < self._thresholds.stalled_steps
        ):
            return
        last.is_reported = True
        total = sequence.num_prompt_tokens + num_output
        yield self.of_sequence(
            sequence,
            f"no token computed for {seconds:.1f} s, in which {plural(num_batches, 'step')}"
            f" computed others; {num_computed:,} of {plural(total, 'token')} computed",
        )

    @rule(
        "overtaken",
        "a request waits while later requests of no higher priority are admitted",
        "warning",
    )
    def _overtaken(self, admitted: list[RequestState]) -> Iterator[Finding]:
        """Checks the requests that still wait after a step admitted others."""
        limits = self._thresholds
        for later in admitted:
            for first, waiting in self._waiting_before(later):
                waiting.num_overtaken += 1
                waited = self.state.time - waiting.since
                is_long = (
                    waiting.num_overtaken >= limits.overtaken_requests
                    and waited >= limits.overtaken_seconds
                )
                if is_long and not waiting.is_reported:
                    waiting.is_reported = True
                    yield self._overtaken_finding(first, waiting, later, waited)

    def _overtaken_finding(
        self, first: RequestState, waiting: _Waiting, later: RequestState, waited: float
    ) -> Finding:
        since = "" if waiting.preempted_at is None else f" since step {waiting.preempted_at}"
        what = "it was preempted and has waited" if since else "it has waited"
        return self.of_engine(
            f"{what} {waited:.1f} s{since}, in which the engine admitted"
            f" {plural(waiting.num_overtaken, 'later request')} of no higher priority, the last of"
            f" them {later.request_id}",
            request_id=first.request_id,
        )

    def _waiting_before(self, later: RequestState) -> Iterator[tuple[RequestState, _Waiting]]:
        """Yields waiting requests that come before one that was admitted.

        Those that have never been scheduled are represented by the first of each priority.
        """
        info = self.state.info
        if info is not None and info.queue_order == "unknown":
            return
        by_arrival = info is not None and not has_priorities(info)
        is_first = later.request_id in self._held_blocks and (
            info is None or holders_are_first(info)
        )
        waiting = [next(iter(queue.items())) for queue in islice(self._new.values(), _MAX_COMPARED)]
        waiting += islice(self._preempted.items(), _MAX_COMPARED)
        for request_id, wait in waiting:
            request = self.state.requests.get(request_id)
            if request is None or not self._waits_for_its_turn(request):
                continue
            if is_first and not self._holds_blocks(request):
                continue
            if by_arrival:
                is_before = request.queue_turn < later.queue_turn
            else:
                is_before = request.priority <= later.priority and arrival_in_queue(
                    request
                ) < arrival_in_queue(later)
            if is_before:
                yield request, wait

    @rule("thrash", "a request is preempted again and again and gains almost nothing", "warning")
    def _thrash(self, request: RequestState, step: Step, num_lost: int) -> Iterator[Finding]:
        history = self._preemptions.setdefault(request.request_id, [])
        sequences = [self.state.sequences[seq_id] for seq_id in request.seq_ids]
        again = min(num_lost, history[-1].num_lost_tokens) if history else 0
        again = max(again - self._num_found.get(request.request_id, 0), 0)
        num_output = sum(len(sequence.output_token_ids) for sequence in sequences)
        history.append(_Gain(step.step, num_output, num_lost, again))
        num = max(int(self._thresholds.thrash_preemptions), 2)
        if len(history) < num:
            return
        first = history[-num]
        gained = num_output - first.num_output_tokens
        recomputed = sum(gain.num_recomputed_tokens for gain in history[1 - num :])
        if gained < num - 1 or recomputed >= self._thresholds.thrash_recomputed * gained:
            yield self.of_engine(
                f"preempted {num} times since step {first.step}, and {plural(gained, 'token')}"
                f" gained meanwhile, for which {plural(recomputed, 'token')} were computed again;"
                f" {plural(request.num_lost_tokens, 'computed token')} lost in"
                f" {plural(request.num_preemptions, 'preemption')}",
                request_id=request.request_id,
            )
            history.clear()
        else:
            del history[0]

    @rule("never-fits", "a request waits whose prompt is larger than the KV pool")
    def _never_fits(self, step: Step) -> Iterator[Finding]:
        info = self.state.info
        if info is None or not self._oversized:
            return
        for request_id, arrived in list(self._oversized.items()):
            request = self.state.requests[request_id]
            is_examined = request.wait_reason is not None or request.num_preemptions > 0
            if step.step - arrived < _STEPS_TO_REFUSE or not (
                is_examined or step.stats.num_running == 0
            ):
                continue
            del self._oversized[request_id]
            if self._frees_blocks():
                continue
            need = -(-request.num_prompt_tokens // info.block_size)
            yield self.of_engine(
                f"its prompt of {plural(request.num_prompt_tokens, 'token')} needs {need} blocks,"
                f" the pool has {info.num_gpu_blocks - info.num_reserved_blocks}",
                request_id=request_id,
            )

    def _frees_blocks(self) -> bool:
        """Returns whether tables drop blocks behind a sliding window, so that any prompt fits."""
        info = self.state.info
        if info is None or len(info.kv_cache_groups) > 1 or not has_positions(info):
            return True
        reserved = info.num_reserved_blocks
        return reserved > 0 and any(
            min(sequence.block_table, default=reserved) < reserved
            for sequence in self.state.sequences.values()
        )

    def _add(self, request: RequestState) -> None:
        info, metrics = self.state.info, request.metrics
        waits = any(
            self.state.sequences[seq_id].status is not SequenceStatus.RUNNING
            for seq_id in request.seq_ids
        )
        if waits:
            is_new = metrics.first_scheduled_time is None
            if is_new:
                queue = self._new.setdefault(request.priority, {})
                queue[request.request_id] = _Waiting(metrics.arrival_time)
            else:
                steps = request.preemption_steps
                since = request.spans[-1].start if request.spans else self.state.time
                self._preempted[request.request_id] = _Waiting(since, steps[-1] if steps else None)
        if info is not None and info.block_size > 0:
            num_blocks = info.num_gpu_blocks - info.num_reserved_blocks
            if request.num_prompt_tokens > num_blocks * info.block_size:
                self._oversized[request.request_id] = self.state.step

    def _remove(self, request_id: str) -> None:
        request = self.state.requests.get(request_id)
        if request is not None:
            self._remove_waiting(request)
        self._preemptions.pop(request_id, None)
        self._oversized.pop(request_id, None)
        if not self._num_unfinished:
            self._restart_clock(self.state.time)
