"""Observes a `ContinuousBatchProcessor`, on the thread that generates.

A step begins with `schedule_batch` and ends with `update_batch`. With asynchronous batching the
next step is scheduled before the outputs of this one are processed. The observer copies references
and integers of the requests that are active, and never iterates over the whole waiting queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import field

from seqtop.adapters.observations import (
    Admitted,
    Arrived,
    Counts,
    CurrentRequest,
    ObservationSink,
    Preempted,
    RequestEnded,
    Scheduled,
    SwappedIn,
    SwappedOut,
    Tables,
)
from seqtop.adapters.step_journal import Batch, ReportedRequest, StepJournal
from seqtop.adapters.transformers.blocks import Blocks
from seqtop.adapters.wrapping import Wrap

_STARVED: Final = "STARVED"
"""The status of an active request in `starved_requests`: the pool has no pages for its tokens."""
_SAFETY_MARGIN: Final = "SAFETY_MARGIN"
"""The status of an active request that was not looked at, as the safety margin is not met."""
_READ_BUDGET: Final = "READ_BUDGET"
"""The status of an active request for whose tokens the batch cannot read enough of the cache."""
_MAX_REFUSED: Final = 64
"""Waiting requests without enough free blocks that are named at each step."""
_SAMPLING_FIELDS: Final = (
    "temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty"
).split()


class _Request(ReportedRequest, kw_only=True):
    """An unfinished request, as it has been reported."""

    state: Any
    """Its `RequestState`. A soft reset replaces it by a new one with the same id."""
    num_prompt_tokens: int
    parent: str = ""
    """The id of the request that it is a sample of; empty for none."""
    was_preempted: bool = False
    table: list[int] = field(default_factory=list)
    """The main table in transformers' numbers."""
    size: int = 0
    """The blocks in all tables."""
    is_active: bool = False
    is_swapped: bool = False
    """True if its blocks are in host memory."""
    host_blocks: list[int] = field(default_factory=list)
    """Those blocks, of a model with one kind of attention."""


class ProcessorObserver:
    """Wraps the methods of one processor and sends observations of them.

    Args:
        processor: A `ContinuousBatchProcessor`.
        generation_config: The `GenerationConfig` of its requests.
        wrap: Wraps a method.
        publisher: Receives the observations.
        blocks: The numbers of its blocks.
        not_available: Keys of columns and figures for which the processor lacks something.
        clock: Returns the time in seconds since the epoch.
        timer: Returns seconds, as `time.perf_counter` does, from which transformers' times are.

    Raises:
        AttributeError: The processor lacks something without which nothing can be observed.
    """

    def __init__(
        self,
        processor: Any,
        generation_config: Any,
        wrap: Wrap,
        publisher: ObservationSink,
        blocks: Blocks,
        not_available: Collection[str] = (),
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler: Any = processor.scheduler
        self._offloading: Any = processor.offloading_manager
        self._generation_config = generation_config
        self._publisher, self._blocks = publisher, blocks
        self._clock, self._timer = clock, timer
        host_pool = getattr(self._offloading, "_cpu_pool", None)
        self._host_pool = host_pool if not blocks.kinds else None
        self._requests: dict[str, _Request] = {}
        """The unfinished requests that have been reported, by id."""
        self._journal = StepJournal(publisher.send, clock, timer)
        self._new_batches: list[Batch] = []
        """Those scheduled since the last report. Their contents are `FutureRequestState`s."""
        self._hits: dict[str, int] = {}
        """By request, the tokens found in the prefix cache, until its admission is reported."""
        self._parents: dict[str, str] = {}
        """By the id of each sample, that of its request."""
        self._forked: list[str] = []
        self._late: list[Any] = []
        """Samples for which there was no room, and that join the queue at the end of a step."""
        self._num_queries = self._num_hits = 0
        self._wait_reasons: list[tuple[str, str]] = []
        self._examined: set[str] = set()
        """The requests that the last call of `schedule_batch` looked at outside of the margin."""
        self._left_out: dict[str, str] = {}
        """The active requests that are not in the last batch, each with its status."""
        self._refused: list[str] = []
        """The requests for which the last call of `schedule_batch` found no blocks."""
        self._is_updating = self._is_offloading = False
        self._is_in_margin = True
        self._watches_pool = False
        """True while the method is wrapped that is called for each candidate: if requests wait."""
        self._admits_none = False
        """True if the last call of `schedule_batch` did not look at waiting requests."""
        self._schedule_start: float | None = None
        """The time of the first call for the next batch."""
        self._started_at = self._schedule_seconds = 0.0
        scheduler, cache = self._scheduler, processor.cache
        wrap(scheduler, "add_waiting_request", after=self._after_add)
        wrap(scheduler, "clear_cancelled_requests", after=self._after_cancel)
        wrap(scheduler, "finish_request", before=self._before_finish)
        wrap(
            scheduler,
            "schedule_batch",
            before=self._before_schedule,
            after=self._after_schedule,
        )
        self._knows_reasons = "why" not in not_available
        if self._knows_reasons:
            wrap(scheduler, "_try_to_meet_safety_margin", after=self._after_margin)
            self._watch_candidates = wrap(
                scheduler, "_infer_request_tokens", before=self._before_examine, is_on=False
            )
            self._watch_pool = wrap(
                cache, "can_store_request_tokens", after=self._after_store, is_on=False
            )
        if cache.use_prefix_sharing:
            wrap(cache, "search_prefix_match", after=self._after_match)
        if "parents" not in not_available:
            wrap(cache, "prepare_fork_request", after=self._after_fork)
        wrap(
            self._offloading,
            "offload_requests",
            before=self._before_offload,
            after=self._after_offload,
        )
        wrap(processor, "prepare_next_batch", after=self._after_prepare)
        wrap(processor, "update_batch", before=self._before_update, after=self._after_update)
        if hasattr(processor, "_handle_request_error"):
            wrap(processor, "_handle_request_error", after=self._after_error)
        if scheduler.active_requests or scheduler.waiting_requests:
            self._send_all()

    # --- Arrivals, preemptions and ends

    def _after_add(self, _result: object, state: Any, *_: Any, **__: Any) -> None:
        request = self._requests.get(state.request_id)
        if self._is_offloading and request is not None:
            self._preempt(request, state)
        elif self._is_updating:
            self._late.append(state)
        else:
            self._publisher.send(self._arrive(state))

    def _arrive(self, state: Any) -> Arrived:
        """Returns the arrival of a request, which is reported from now on."""
        num_prompt_tokens = _num_prompt_tokens(state)
        parent = self._parents.pop(state.request_id, "")
        request = _Request(
            id=state.request_id, state=state, num_prompt_tokens=num_prompt_tokens, parent=parent
        )
        self._requests[request.id] = request
        return self._arrived(request)

    def _arrived(self, request: _Request) -> Arrived:
        state, num_prompt_tokens = request.state, request.num_prompt_tokens
        eos = getattr(state, "_eos_token_ids", ())
        return Arrived(
            request_id=state.request_id,
            arrival_time=self._clock() - (self._timer() - state.created_time),
            status="PREEMPTED" if request.was_preempted else "WAITING",
            priority=0,
            num_prompt_tokens=num_prompt_tokens,
            prompt_token_ids=state.initial_tokens[:num_prompt_tokens],
            sampling_params=self._sampling_params(state, num_prompt_tokens),
            parent_request_id=request.parent,
            eos_token_id=next(iter(eos)) if len(eos) == 1 else None,
        )

    def _sampling_params(self, state: Any, num_prompt_tokens: int) -> dict[str, Any]:
        config, own = self._generation_config, getattr(state, "logit_processor_kwargs", {})
        params = {name: own.get(name, getattr(config, name, None)) for name in _SAMPLING_FIELDS}
        if not getattr(config, "do_sample", True):
            params["temperature"] = 0.0
        if state.max_new_tokens is not None:
            # A soft reset moves the output to the tokens it begins with.
            before = len(state.initial_tokens) - num_prompt_tokens
            params["max_tokens"] = state.max_new_tokens + before
        params["n"] = 1 + state.num_children
        return params

    def _preempt(self, request: _Request, state: Any) -> None:
        """Records that a request was offloaded; `state` is the one that waits now."""
        old, request_id = request.state, state.request_id
        is_swap = state.is_cpu_offloaded
        if is_swap:
            self._swap_out(request, state)
        else:
            num_tokens = len(old.initial_tokens) + len(old.generated_tokens)
            # One that has only found its prefix in this step waits for viewers, and loses nothing.
            num_lost = min(old.position_offset, num_tokens) if request.is_active else 0
            self._journal.preempted.append(Preempted(request_id, num_lost, None))
        if not is_swap:
            self._hits.pop(request_id, None)
        request.state, request.is_active = state, False
        request.table, request.size = [], 0
        request.was_preempted = True
        if not is_swap:
            request.num_output = 0

    def _swap_out(self, request: _Request, state: Any) -> None:
        self._note_swapped(request)
        if not request.is_active:  # it became active in this step, so viewers do not know its table
            request.host_blocks = []
        pairs = list(zip(request.table, request.host_blocks, strict=False))
        self._journal.swapped_out.append(SwappedOut(state.request_id, state.position_offset, pairs))

    def _note_swapped(self, request: _Request) -> None:
        request.is_swapped = True
        if self._host_pool is not None:
            own = self._offloading._request_id_to_cpu_blocks[request.state.request_id]
            request.host_blocks = list(next(iter(own.values())))

    def _before_offload(self, *_: Any, **__: Any) -> None:
        self._is_offloading = True

    def _after_offload(self, *_: Any, **__: Any) -> None:
        self._is_offloading = False

    def _after_cancel(self, cancelled: Any, *_: Any, **__: Any) -> None:
        for state in cancelled or ():
            self._end(state, "FINISHED_ABORTED")

    def _before_finish(self, request_id: str, *_: Any, **__: Any) -> None:
        request = self._requests.get(request_id)
        if request is not None and not self._is_offloading:
            self._end(request.state, _end_status(request.state))

    def _after_error(self, _result: object, _error: object, state: Any, *_: Any) -> None:
        if self._is_updating:  # `update_batch` has raised: the step counts as far as it came
            self._after_update()
        self._end(state, "FAILED")

    def _end(self, state: Any, status: str) -> None:
        """Reports the end of a request: with its step, or by itself between two steps."""
        request = self._requests.get(state.request_id)
        if request is None or request.state is not state:
            return
        if not self._is_updating:
            del self._requests[state.request_id]
            self._hits.pop(state.request_id, None)
        ended = RequestEnded(
            request_id=state.request_id,
            status=status,
            stop_reason=None,
            num_computed_tokens=state.position_offset,
            time=self._clock(),
        )
        if self._is_updating:
            self._journal.ended.append(ended)
        else:
            self._publisher.send(ended)

    # --- Scheduling

    def _before_schedule(self, *_: Any, **__: Any) -> None:
        if self._schedule_start is None:
            self._schedule_start, self._schedule_seconds = self._clock(), 0.0
        self._refused, self._examined = [], set()
        if self._knows_reasons and self._watches_pool is not bool(self._scheduler.waiting_requests):
            self._watches_pool = not self._watches_pool
            self._watch_pool(self._watches_pool)
        self._admits_none = getattr(self._scheduler, "block_new_requests", False)
        self._started_at = self._timer()

    def _after_margin(self, is_in_margin: bool, *_: Any, **__: Any) -> None:
        if self._is_in_margin is not is_in_margin:
            self._is_in_margin = is_in_margin
            self._watch_candidates(not is_in_margin)

    def _before_examine(self, state: Any, *_: Any, **__: Any) -> None:
        self._examined.add(state.request_id)

    def _after_store(self, fits: bool, state: Any, *_: Any, **__: Any) -> None:
        if not fits:
            self._refused.append(state.request_id)

    def _after_match(self, num_tokens: int, request_id: str, *_: Any, **__: Any) -> None:
        if num_tokens:
            self._hits[request_id] = num_tokens

    def _after_schedule(
        self, result: Any, token_budget: int, cache_budget: int, *_: Any, **__: Any
    ) -> None:
        ended = self._timer()
        self._schedule_seconds += ended - self._started_at
        members = result[0]
        if self._knows_reasons:
            limit = self._limit_of(result, token_budget, cache_budget)
            has_waiting = bool(self._scheduler.waiting_requests)
            self._wait_reasons = list(self._reasons(limit)) if has_waiting else []
            self._left_out = dict(self._skipped(members or (), limit))
        if members:
            start = self._schedule_start or self._clock()
            batch = Batch(members, Scheduled(start, self._schedule_seconds), 0.0)
            self._journal.in_flight.append(batch)
            self._new_batches.append(batch)
            self._schedule_start = None

    def _limit_of(self, result: Any, token_budget: int, cache_budget: int) -> str:
        """Returns the limit that a batch has reached, as in `WaitReason.cause`."""
        members, is_decode_only, num_tokens, num_read = result
        if num_tokens >= token_budget:
            return "token_budget"
        if len(members or ()) >= self._scheduler.max_requests_per_batch:
            return "seq_limit"
        if num_read >= cache_budget and not is_decode_only:
            return "unknown"  # the budget of tokens read from the cache
        return "unknown" if self._is_in_margin else "reserved_blocks"

    def _skipped(self, members: Sequence[Any], limit: str) -> Iterator[tuple[str, str]]:
        """Yields the active requests in no batch, although it has room, and the status of each."""
        active = self._scheduler.active_requests
        has_room = limit in ("unknown", "reserved_blocks")
        if not has_room or len(active) == len(members):
            return
        scheduled = {member.state.request_id for member in members}
        for request_id in active:
            if request_id not in scheduled:
                is_read = limit == "unknown" or request_id in self._examined
                yield request_id, _READ_BUDGET if is_read else _SAFETY_MARGIN

    def _reasons(self, cause: str) -> Iterator[tuple[str, str]]:
        """Yields waiting requests without blocks, and the first one that was not looked at."""
        waiting, order = self._scheduler.waiting_requests, self._scheduler.waiting_requests_order
        if self._admits_none:
            yield order[0], "reserved_blocks"  # for the requests that were not offloaded
            return
        refused = [request_id for request_id in self._refused if request_id in waiting]
        for request_id in islice(refused, _MAX_REFUSED):
            yield request_id, "no_blocks"
        known = set(refused)
        first = next((request_id for request_id in order if request_id not in known), None)
        if first is not None:
            yield first, cause

    def _after_prepare(self, _has_batch: object, *_: Any, **__: Any) -> None:
        if self._journal.in_flight:
            self._journal.in_flight[-1].launched_at = self._timer()

    # --- The end of a step

    def _before_update(self, *_: Any, **__: Any) -> None:
        self._journal.begin_processing()
        self._is_updating = True

    def _after_fork(
        self, forked: list[str], source: Any, request_ids: list[str], *_: Any, **__: Any
    ) -> None:
        self._parents |= dict.fromkeys(request_ids, source.request_id)
        self._forked += forked

    def _after_update(self, *_: Any, **__: Any) -> None:
        self._is_updating = False
        if not self._journal.in_flight:  # it was scheduled before this observer existed
            self._send_all()
            return
        batch = self._journal.in_flight.popleft()
        active = self._scheduler.active_requests
        self._add_scheduled(batch)
        output_ids, output_token_ids = self._outputs(batch.content)
        forks = [self._fork(active[name]) for name in self._forked if name in active]
        self._journal.scheduled[:0] = forks
        changed_tables = self._changed_tables(batch.content)
        self._forget_ended()
        self._forked = []
        self._journal.send_step(
            batch,
            {
                member.state.request_id: member.query_length
                for member in batch.content
                if member.query_length  # a request to be forked may have none to compute
            },
            list(active),
            output_ids=output_ids,
            output_token_ids=output_token_ids,
            num_computed_tokens=[state.position_offset for state in active.values()],
            tables=changed_tables,
            counts=self._counts(),
            running_statuses=self._running_statuses(),
        )
        for state in self._late:
            self._publisher.send(self._arrive(state))
        self._late = []
        if self._publisher.wants_all_requests:
            self._send_all()

    def _running_statuses(self) -> dict[str, str]:
        active = self._scheduler.active_requests
        starved = getattr(self._scheduler, "starved_requests", ())
        statuses = self._left_out | {state.request_id: _STARVED for state, _ in starved}
        return {name: status for name, status in statuses.items() if name in active}

    def _add_scheduled(self, batch: Batch) -> None:
        """Adds the calls of `schedule_batch` since the last step to the journal."""
        batches, self._new_batches = self._new_batches, []
        for new in batches:
            run = self._journal.add_scheduled(new.run)
            for member in new.content:
                request = self._requests.get(member.state.request_id)
                if request is None or request.state is not member.state:
                    continue
                if request.is_active:
                    self._append(request, run.appended)
                elif request.is_swapped and request.id not in self._hits:
                    run.swapped_in.append(self._swap_in(request))
                else:
                    run.admitted.append(self._admit(request))
        scheduled = self._journal.scheduled
        if not scheduled:
            self._journal.add_scheduled(Scheduled(batch.run.start_time))
        # Found in the prefix cache, for which they are active, and in no batch.
        for request_id in list(self._hits):
            request = self._requests.get(request_id)
            if request is not None and request_id in self._scheduler.active_requests:
                scheduled[-1].admitted.append(self._admit(request))
        scheduled[-1].wait_reasons = self._wait_reasons

    def _admit(self, request: _Request) -> Admitted:
        request_id = request.state.request_id
        num_cached = self._hits.pop(request_id, 0)
        self._num_queries += len(request.state.initial_tokens)
        self._num_hits += num_cached
        return Admitted(request_id, num_cached, self._activate(request))

    def _swap_in(self, request: _Request) -> SwappedIn:
        host_blocks = request.host_blocks
        tables = self._activate(request)
        return SwappedIn(
            request.state.request_id,
            list(zip(host_blocks, request.table, strict=False)),
            tables,
        )

    def _activate(self, request: _Request) -> Tables:
        """Notes that a request is active; returns its tables."""
        request_id = request.state.request_id
        request.is_active, request.is_swapped, request.host_blocks = True, False, []
        request.table = list(self._blocks.tables[0].get(request_id, ()))
        request.size = self._blocks.size(request_id)
        return self._blocks.of(request_id)

    def _append(self, request: _Request, appended: list[tuple[str, Tables]]) -> None:
        """Reports the blocks that a request of a model with one kind of attention got."""
        if self._blocks.kinds:
            return
        table = self._blocks.tables[0].get(request.state.request_id, ())
        if len(table) > request.size:
            new = table[request.size :]
            appended.append((request.state.request_id, (new,)))
            request.table += new
            request.size = len(table)

    def _changed_tables(self, members: list[Any]) -> list[tuple[str, Tables]]:
        """Returns the tables in which a block was replaced by an equal one, or that have grown."""
        changed: list[tuple[str, Tables]] = []
        has_kinds = bool(self._blocks.kinds)
        for member in members:
            if not has_kinds and not member.complete_blocks:
                continue
            request_id = member.state.request_id
            request, table = self._requests.get(request_id), self._blocks.tables[0].get(request_id)
            if request is None or table is None or not request.is_active:
                continue
            size = self._blocks.size(request_id)
            if size != request.size or (member.complete_blocks and table != request.table):
                request.size, request.table = size, list(table)
                changed.append((request_id, self._blocks.of(request_id)))
        return changed

    def _outputs(self, members: list[Any]) -> tuple[list[str], list[list[int]]]:
        """Returns the requests that got tokens, and these."""
        ids: list[str] = []
        tokens: list[list[int]] = []
        for member in members:
            state = member.state
            request = self._requests.get(state.request_id)
            if request is None or request.state is not state:
                continue
            if new := request.take_output(state.generated_tokens):
                ids.append(request.id)
                tokens.append(new)
        return ids, tokens

    def _fork(self, state: Any) -> Scheduled:
        """Reports the arrival of a sample; returns its start with the blocks of its parent."""
        arrived = self._arrive(state)
        self._publisher.send(arrived)
        tables = self._activate(self._requests[state.request_id])
        fork = Admitted(state.request_id, 0, tables, fork_time=arrived.arrival_time)
        return Scheduled(arrived.arrival_time, admitted=[fork])

    def _forget_ended(self) -> None:
        for ended in self._journal.ended:
            self._requests.pop(ended.request_id, None)

    def _counts(self) -> Counts:
        num_swapped = len(getattr(self._offloading, "_request_id_to_cpu_blocks", ()))
        num_waiting = len(self._scheduler.waiting_requests) - num_swapped - len(self._late)
        num_cached = self._blocks.num_cached
        return Counts(
            num_waiting=num_waiting,
            num_free_blocks=self._blocks.num_free() + num_cached,
            num_cached_blocks=num_cached,
            num_prefix_queries=self._num_queries,
            num_prefix_hits=self._num_hits,
            num_free_cpu_blocks=(
                None if self._host_pool is None else self._blocks.num_free(self._host_pool)
            ),
        )

    def _send_all(self) -> None:
        """Reports the present state of all requests."""
        self._new_batches, self._late = [], []
        self._hits.clear()
        active = self._scheduler.active_requests
        order = self._scheduler.waiting_requests_order
        waiting = [
            self._scheduler.waiting_requests[request_id]
            for request_id in dict.fromkeys(order)
            if request_id not in active
        ]
        before, self._requests = self._requests, {}
        current = [self._current(state, active, before) for state in (*active.values(), *waiting)]
        self._journal.send_all(current, self._counts())

    def _current(
        self, state: Any, active: dict[str, Any], before: dict[str, _Request]
    ) -> CurrentRequest:
        request = _Request(
            id=state.request_id, state=state, num_prompt_tokens=_num_prompt_tokens(state)
        )
        self._requests[request.id] = request
        if known := before.get(state.request_id):
            request.parent, request.was_preempted = known.parent, known.was_preempted
        arrived, is_active = self._arrived(request), state.request_id in active
        request.num_output = len(state.generated_tokens)
        is_swapped = getattr(state, "is_cpu_offloaded", False)
        if is_swapped:
            self._note_swapped(request)
            arrived.status = "SWAPPED"
        elif is_active:
            arrived.status = self._running_statuses().get(state.request_id, "RUNNING")
        output = state.initial_tokens[request.num_prompt_tokens :] + state.generated_tokens
        return CurrentRequest(
            arrived=arrived,
            num_computed_tokens=state.position_offset,
            output_token_ids=output,
            tables=self._activate(request) if is_active else (),
            is_running=is_active,
            was_scheduled=is_active or is_swapped or bool(output),
            is_swapped=is_swapped,
        )


def _num_prompt_tokens(state: Any) -> int:
    """Returns the tokens of the prompt, to which a soft reset adds the output."""
    return getattr(state, "_true_initial_tokens", 0) or len(state.initial_tokens)


def _end_status(state: Any) -> str:
    """Returns the status of V1 for the way in which a request has ended."""
    if state.status.name != "FINISHED":
        return str(state.status.name)
    generated = state.generated_tokens
    is_stopped = bool(generated) and generated[-1] in getattr(state, "_eos_token_ids", ())
    return "FINISHED_STOPPED" if is_stopped else "FINISHED_LENGTH_CAPPED"
