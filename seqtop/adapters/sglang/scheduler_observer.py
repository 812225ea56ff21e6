"""Observes SGLang's scheduler, on the scheduler's own thread.

It does as little as possible: for each step it copies references and integers, never iterates over
the whole waiting queue, never waits for the device, and leaves all further computations to the
other process. The exception is the whole state, which a publisher needs at the start of the
observation and after a loss: it has the content of the radix tree.

With the overlap loop, SGLang launches a batch before it processes the results of the one before.
What is reported then of a request is what the scheduler has at that time, with the launched batch.
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any, Final

from seqtop.adapters.observations import (
    Admitted,
    Arrived,
    Counts,
    CurrentRequest,
    ObservationSink,
    Preempted,
    RequestEnded,
    Scheduled,
    Tables,
    WaitingRequest,
)
from seqtop.adapters.sglang.admission import Admission
from seqtop.adapters.sglang.engine_description import lora_manager, most_tokens
from seqtop.adapters.sglang.page_tables import PageTables
from seqtop.adapters.sglang.probe import has_priorities, is_lower_first
from seqtop.adapters.sglang.queues import NamedQueues
from seqtop.adapters.sglang.radix_tree import RadixTree, is_observable
from seqtop.adapters.sglang.requests import (
    Request,
    arrived,
    end_of,
    no_table,
    num_tokens,
)
from seqtop.adapters.sglang.sessions import Held, Sessions
from seqtop.adapters.step_journal import Batch, StepJournal
from seqtop.adapters.wrapping import Wrap

_MAX_FRAMES: Final = 8
"""Callers of a retraction among which the one that knows its cause is looked for."""

_SCHEDULE: Final = (
    "get_next_batch_to_run",
    "get_next_disagg_prefill_batch_to_run",
    "get_next_disagg_decode_batch_to_run",
)
"""The methods that make a batch: each event loop calls its own."""


class _Launched(Batch):
    """A batch whose results have not been processed. Its content is its list of `Req`."""

    requests: list[Request | None]
    num_tokens: list[int] | None = None
    """The tokens of each request; `None` if it is one for each."""
    slots: Any = None
    """The slot of the new token of each request, as a tensor; `None` if it is not one for each."""


class SchedulerObserver:
    """Wraps the methods of one scheduler and sends observations of them.

    Args:
        scheduler: SGLang's scheduler.
        wrap: Wraps a method.
        publisher: Receives the observations.
        clock: Returns the time in seconds since the epoch.
        timer: Returns the time of SGLang's `time_stats`, in seconds.
    """

    def __init__(
        self,
        scheduler: Any,
        wrap: Wrap,
        publisher: ObservationSink,
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._publisher = publisher
        self._clock, self._timer = clock, timer
        self._page_size: int = scheduler.page_size
        self._has_priority = has_priorities(scheduler) and is_lower_first(scheduler)
        self._most_tokens = most_tokens(scheduler)
        self._lora_manager = lora_manager(scheduler)
        self._eos_token_ids = _eos_token_ids(scheduler)
        self._tables = PageTables(scheduler, publisher)
        self._journal = StepJournal(self._tables.send, clock, timer)
        self._queues = NamedQueues(scheduler)
        self._sessions = Sessions(scheduler)
        self._requests: dict[Any, Request] = {}
        """The unfinished requests that were reported, by SGLang's `Req`."""
        self._running: dict[Any, Request] = {}
        """Those of them that are in batches, in the order of their admission."""
        self._queued: dict[Any, Request] = {}
        """Those of them that are in a queue with a name."""
        self._just_ended: dict[Any, Request] = {}
        """Those that the last step has ended. One may be in a batch that is made already."""
        self._last_launched: _Launched | None = None
        self._moved_since: list[WaitingRequest] = []
        """Requests whose queue, or whose pages in one, have changed since the last step."""
        self._num_requests = self._num_queries = self._num_hits = 0
        self._scheduled_at = 0.0
        self._admission = Admission(scheduler, wrap)
        self._tree = (
            RadixTree(scheduler, wrap, self._tables, self._id_of)
            if is_observable(scheduler)
            else None
        )
        wrap(scheduler, "_add_request_to_queue", after=self._after_add)
        wrap(scheduler, "process_input_requests", after=self._after_input)
        for name in _SCHEDULE:
            if hasattr(scheduler, name):
                wrap(scheduler, name, before=self._before_schedule)
        wrap(scheduler, "run_batch", before=self._before_run, after=self._after_run)
        wrap(
            scheduler,
            "process_batch_result",
            before=self._journal.begin_processing,
            after=self._after_process,
        )
        if hasattr(scheduler, "send_abort_output"):
            wrap(scheduler, "send_abort_output", before=self._before_abort)
        elif (sender := _sender(scheduler)) is not None:  # up to 0.5.20
            wrap(sender, "send_output", before=self._before_abort)
        wrap(_request_class(), "reset_for_retract", before=self._before_retract)
        self._find_requests()

    def _find_requests(self) -> None:
        """Reports the requests that the scheduler has had before it was observed."""
        scheduler = self._scheduler
        batches = [scheduler.last_batch, scheduler.running_batch]
        batches += [*getattr(scheduler, "running_mbs", ()), *getattr(scheduler, "mbs", ())]
        reqs = list(chain.from_iterable(batch.reqs for batch in batches if batch is not None))
        reqs += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
        for req in reqs:
            if req.finished_reason is None and req.kv.req_pool_idx is not None:
                self._running[req] = self._requests.setdefault(req, self._new(req))
        for req in scheduler.waiting_queue:
            self._requests[req] = self._new(req)
        for name, req in self._queues:
            self._requests[req] = self._queued[req] = self._new(req)
            self._queued[req].queue = name
            self._running.pop(req, None)
        if self._requests or scheduler.tree_cache.evictable_size():
            self._send_all()

    def _new(self, req: Any) -> Request:
        self._num_requests += 1
        return Request(f"{req.rid}-{self._num_requests & 0xFFFFFFFF:08x}")

    def _id_of(self, req: Any) -> str:
        request = self._requests.get(req)
        return request.id if request is not None else ""

    def _arrive(self, req: Any) -> Request:
        """Reports a request that is new."""
        request = self._requests[req] = self._new(req)
        self._send_arrived(req, request)
        request.num_output = len(req.output_ids)
        return request

    def _send_arrived(self, req: Any, request: Request) -> None:
        self._tables.send(self._arrived(req, request, "WAITING"))

    def _arrived(self, req: Any, request: Request, status: str) -> Arrived:
        return arrived(
            req,
            request.id,
            status,
            self._clock(),
            self._timer(),
            has_priority=self._has_priority,
            loras=getattr(self._lora_manager, "lora_refs", {}),
        )

    def _after_add(self, _result: object, req: Any, *_: Any, **__: Any) -> None:
        if req not in self._requests and req not in self._just_ended:
            self._arrive(req)

    def _after_input(self, *_: Any, **__: Any) -> None:
        """Reports what has happened without a step, if none follows."""
        self._tables.flush()
        if self._publisher.wants_all_requests:
            self._send_all()
        journal = self._journal
        if journal.in_flight:
            return
        num_waiting = self._update_queues()
        is_paused = getattr(self._scheduler, "_engine_paused", False)
        has_ended = journal.ended or journal.preempted
        if (has_ended and (is_paused or not (self._running or num_waiting))) or (
            self._moved_since and not self._running
        ):
            journal.begin_schedule()
            journal.begin_processing()
            self._send_step(self._launched([], Scheduled(journal.start_time), self._timer()))

    def _before_abort(self, output: Any, req: Any = None, *_: Any, **__: Any) -> None:
        """Records the end of a request whose results go past the batches."""
        if req is None or type(output).__name__ != "AbortReq":
            return
        if req in self._just_ended:
            return
        request = self._requests.get(req) or self._arrive(req)
        reason = getattr(output, "finished_reason", None) or getattr(req, "finished_reason", None)
        self._end(req, request, reason)

    def _end(self, req: Any, request: Request, reason: Any) -> None:
        status, stop_reason = end_of(reason, self._eos_token_ids)
        record = self._sessions.record(req) if req in self._running else None
        kv = req.kv if record is None else record
        if record is not None:
            self._sessions.hold(Held(req, request, record, status))
        self._journal.ended.append(
            RequestEnded(
                request_id=request.id,
                status=status,
                stop_reason=stop_reason,
                num_computed_tokens=min(kv.kv_committed_len, num_tokens(req)),
                time=self._clock(),
                tables=None if record is None else (self._tables.read(record),),
                num_schedule_calls=self._journal.num_schedule_calls,
            )
        )
        self._just_ended[req] = request
        self._requests.pop(req, None)
        self._queued.pop(req, None)
        self._running.pop(req, None)

    def _before_retract(self, req: Any, *_: Any, **__: Any) -> None:
        request = self._requests.get(req)
        if request is None:
            return
        self._journal.preempted.append(
            Preempted(
                request_id=request.id,
                num_lost_tokens=min(req.kv.kv_committed_len, num_tokens(req)),
                for_request_id=self._cause_of_retraction(),
                status="RETRACTED",
            )
        )
        request.forget_table()
        if (record := self._sessions.record(req)) is not None:  # its session keeps its pages
            self._moved_since.append(
                WaitingRequest(
                    request.id, "RETRACTED", record.kv_committed_len, (self._tables.read(record),)
                )
            )
        self._running.pop(req, None)

    def _cause_of_retraction(self) -> str | None:
        # A retraction for lack of memory is for no request. One for a request with a higher
        # priority has it in a variable.
        frame = sys._getframe(2)
        for _ in range(_MAX_FRAMES):
            if frame.f_code.co_name == "preempt_to_schedule":
                request = self._requests.get(frame.f_locals.get("req"))
                return request.id if request is not None else None
            if frame.f_back is None:
                break
            frame = frame.f_back
        return None

    def _before_schedule(self, *_: Any, **__: Any) -> None:
        self._journal.begin_schedule()
        self._admission.begin()

    def _before_run(self, *_: Any, **__: Any) -> None:
        self._scheduled_at = self._timer()

    def _after_run(self, _result: object, batch: Any, *_: Any, **__: Any) -> None:
        reqs, mode = [*batch.reqs], batch.forward_mode
        is_decode = mode.is_decode()
        num_extended = None if is_decode else batch.extend_lens
        if num_extended is not None and len(num_extended) != len(reqs):
            num_extended = None
        admitted = [
            self._admit(req, batch, position, is_decode=is_decode)
            for position, req in enumerate(reqs)
            if req not in self._running and req not in self._just_ended
        ]
        journal = self._journal
        journal.num_schedule_calls += 1
        run = Scheduled(journal.start_time, self._scheduled_at - journal.started_at)
        run.admitted, run.wait_reasons = admitted, self._wait_reasons(sum(num_extended or ()))
        launched = self._launched(reqs, journal.add_scheduled(run), self._scheduled_at)
        launched.num_tokens = [*num_extended] if num_extended is not None else None
        slots = batch.out_cache_loc if is_decode else None
        launched.slots = slots if slots is not None and len(slots) == len(reqs) else None
        journal.in_flight.append(launched)
        self._last_launched = launched

    def _launched(self, reqs: list[Any], run: Scheduled, launched_at: float | None) -> _Launched:
        requests = [self._requests.get(req) or self._just_ended.get(req) for req in reqs]
        return _Launched(reqs, run, launched_at, requests)

    def _admit(self, req: Any, batch: Any, position: int, *, is_decode: bool) -> Admitted:
        request = self._requests.get(req) or self._arrive(req)
        prefix_lens = None if is_decode else batch.prefix_lens
        # A decode instance has the cache of the whole prompt from its prefill instance.
        num_cached = prefix_lens[position] if prefix_lens else req.kv.kv_committed_len - 1
        num_cached = max(int(num_cached), 0)
        is_kept = self._sessions.record(req) is req.kv
        num_external = 0  # those that a prefill instance or a session had, and no prefix cache
        if is_kept or is_decode:
            num_external = max(num_cached - req.kv.cache_protected_len, 0)
        if is_kept:
            self._sessions.admit(req)
        self._running[req] = request
        self._queued.pop(req, None)
        request.queue = ""
        request.forget_table()
        if not is_decode:
            self._num_queries += num_tokens(req)
            self._num_hits += num_cached - num_external
        return Admitted(request.id, num_cached, no_table(), num_external)

    def _wait_reasons(self, num_tokens: int) -> list[tuple[str, str]]:
        cause = self._admission.cause(len(self._running), num_tokens, self._most_tokens)
        if cause is None:
            return []
        request = self._requests.get(self._scheduler.waiting_queue[0])
        return [(request.id, cause)] if request is not None else []

    def _after_process(self, _result: object, batch: Any, *_: Any, **__: Any) -> None:
        self._tables.flush()
        if self._publisher.wants_all_requests:
            self._take_launched(batch)
            self._send_all()
            return
        self._send_step(self._take_launched(batch))

    def _take_launched(self, batch: Any) -> _Launched:
        launched = self._journal.take_batch(batch.reqs, operator.eq)
        if isinstance(launched, _Launched):
            return launched
        # It was launched before the scheduler was observed.
        launched = self._launched([*batch.reqs], launched.run, launched.launched_at)
        lens = None if batch.forward_mode.is_decode() else batch.extend_lens
        launched.num_tokens = [*lens] if lens is not None and len(lens) == len(batch.reqs) else None
        return launched

    def _send_step(self, launched: _Launched) -> None:
        """Reports the results of a batch; those of an empty one are what has happened since."""
        journal = self._journal
        unreported = {ended.request_id for ended in journal.ended}
        self._just_ended = {
            req: request for req, request in self._just_ended.items() if request.id in unreported
        }
        output_ids, output_token_ids = self._take_outputs(launched)
        num_waiting = self._update_queues()
        waiting, self._moved_since = self._moved_since, []
        if journal.preempted:  # and nothing was launched since
            self._add_scheduled(self._wait_reasons(0))
        appended, tables, computed = self._changed_tables()
        if appended:
            if not journal.scheduled:
                self._add_scheduled([])
            journal.scheduled[-1].appended = appended
        journal.send_step(
            launched,
            dict(self._num_scheduled(launched)),
            [request.id for request in self._running.values()],
            output_ids=output_ids,
            output_token_ids=output_token_ids,
            released=self._sessions.take_released(),
            num_computed_tokens=computed,
            tables=tables,
            waiting=waiting,
            counts=self._counts(num_waiting),
            cache_events=self._tree.take() if self._tree is not None else [],
        )

    def _take_outputs(self, launched: _Launched) -> tuple[list[str], list[list[int]]]:
        """Returns the new tokens of a batch, and the requests that have some; notes the ends."""
        request_ids: list[str] = []
        token_ids: list[list[int]] = []
        for req, request in zip(launched.content, launched.requests, strict=True):
            if request is None or req not in self._requests:
                continue
            if new := request.take_output(req.output_ids):
                request_ids.append(request.id)
                token_ids.append([*new])
            if req.finished_reason is not None:
                self._end(req, request, req.finished_reason)
        return request_ids, token_ids

    def _num_scheduled(self, launched: _Launched) -> Iterable[tuple[str, int]]:
        """Yields the requests of a batch with their tokens."""
        num_tokens = launched.num_tokens or repeat(1)
        for request, num in zip(launched.requests, num_tokens, strict=False):
            if request is not None:
                yield request.id, num

    def _add_scheduled(self, wait_reasons: list[tuple[str, str]]) -> None:
        """Reports what has happened since the last batch was launched."""
        run = self._journal.add_scheduled(Scheduled(self._journal.start_time))
        run.wait_reasons = wait_reasons

    def _changed_tables(
        self,
    ) -> tuple[list[tuple[str, Tables]], list[tuple[str, Tables]], list[int]]:
        """Returns new pages, whole tables, and the computed tokens of the running requests."""
        size, tables, computed = self._page_size, self._tables, []
        whole: list[tuple[str, Tables]] = []
        grown: list[tuple[Any, Request, int]] = []
        for req, request in self._running.items():
            kv = req.kv
            computed.append(kv.kv_committed_len)
            num_pages = -(-kv.kv_allocated_len // size)
            if kv.cache_protected_len != request.num_protected or num_pages < request.num_pages:
                request.num_protected, request.num_pages = kv.cache_protected_len, num_pages
                whole.append((request.id, (tables.read(kv),)))
            elif num_pages != request.num_pages:
                grown.append((req, request, num_pages))
        appended: list[tuple[str, Tables]] = []
        if not grown:
            return appended, whole, computed
        launched = self._last_launched
        positions = {}
        if launched is not None and launched.slots is not None:
            positions = {req: position for position, req in enumerate(launched.content)}
        by_slot: list[tuple[Request, int]] = []
        for req, request, num_pages in grown:
            position = positions.get(req)
            if position is not None and num_pages == request.num_pages + 1 and request.num_pages:
                by_slot.append((request, position))
            else:
                appended.append((request.id, (tables.read(req.kv, request.num_pages),)))
            request.num_pages = num_pages
        if by_slot and launched is not None:
            pages = tables.read_slots(launched.slots, [position for _, position in by_slot])
            appended += [
                (request.id, (new,)) for (request, _), new in zip(by_slot, pages, strict=True)
            ]
        return appended, whole, computed

    def _update_queues(self) -> int:
        """Notes the requests whose queue has changed; returns the number of waiting ones.

        Reports requests that came into a queue, or left all of them, unobserved.
        """
        changed = self._moved_since
        queued: dict[Any, Request] = {}
        for name, req in self._queues:
            request = self._requests.get(req)
            if request is None:
                if req in self._just_ended:
                    continue
                request = self._arrive(req)
            queued[req] = request
            self._running.pop(req, None)
            changed += self._moved(req, request, name)
        for req, request in self._queued.items():
            if req not in queued and req in self._requests and req not in self._running:
                changed += self._moved(req, request, "")
        self._queued = queued
        waiting = self._scheduler.waiting_queue
        num_waiting = len(waiting) + len(queued)
        if num_waiting != len(self._requests) - len(self._running):
            present = {*waiting, *queued}
            for req in [req for req in present if req not in self._requests]:
                if req not in self._just_ended:
                    self._arrive(req)
            for req, request in [*self._requests.items()]:
                if req not in present and req not in self._running:
                    self._end(req, request, req.finished_reason)
        return num_waiting

    def _moved(self, req: Any, request: Request, queue: str) -> Iterable[WaitingRequest]:
        """Yields the state of a request that another queue has, or that has other pages."""
        kv = req.kv
        num_pages = -(-kv.kv_allocated_len // self._page_size)
        if queue != request.queue or num_pages != request.num_pages:
            request.queue, request.num_pages = queue, num_pages
            request.num_protected = kv.cache_protected_len
            yield WaitingRequest(
                request_id=request.id,
                status=queue or ("RETRACTED" if req.is_retracted else "WAITING"),
                num_computed_tokens=kv.kv_committed_len,
                tables=(self._tables.read(kv),),
            )

    def _counts(self, num_waiting: int) -> Counts:
        scheduler, size = self._scheduler, self._page_size
        if getattr(scheduler, "is_hybrid_swa", False) or getattr(scheduler, "is_hybrid_ssm", False):
            stats = scheduler.pool_stats_observer.get_pool_stats()
            free, evictable = stats.full_available_size, stats.full_evictable_size
        else:
            free = scheduler.token_to_kv_pool_allocator.available_size()
            evictable = scheduler.tree_cache.evictable_size()
        return Counts(
            num_waiting=num_waiting,
            num_free_blocks=(free + evictable) // size,
            num_cached_blocks=evictable // size,
            num_prefix_queries=self._num_queries,
            num_prefix_hits=self._num_hits,
        )

    def _send_all(self) -> None:
        """Reports the present state of all requests."""
        for req, request in self._requests.items():  # their next changes follow it
            request.num_output = len(req.output_ids)
            request.num_pages = -(-req.kv.kv_allocated_len // self._page_size)
            request.num_protected = req.kv.cache_protected_len
        waiting = [req for req in self._scheduler.waiting_queue if req in self._requests]
        self._journal.send_all(
            [
                *(
                    self._current(req, self._requests[req])
                    for req in chain(self._running, self._queued, waiting)
                ),
                *(self._still_held(held) for held in self._sessions),
            ],
            self._counts(len(waiting) + len(self._queued)),
            cached=self._tree.content() if self._tree is not None else [],
        )
        self._moved_since = []

    def _current(self, req: Any, request: Request) -> CurrentRequest:
        is_running = req in self._running
        status = "RUNNING" if is_running else request.queue
        if not status:
            status = "RETRACTED" if req.is_retracted else "WAITING"
        has_pages = is_running or bool(request.queue)
        return CurrentRequest(
            arrived=self._arrived(req, request, status),
            num_computed_tokens=req.kv.kv_committed_len if has_pages else 0,
            output_token_ids=[*req.output_ids],
            tables=(self._tables.read(req.kv),) if has_pages else ([],),
            is_running=is_running,
            was_scheduled=is_running or req.is_retracted or bool(req.output_ids),
        )

    def _still_held(self, held: Held) -> CurrentRequest:
        return CurrentRequest(
            arrived=self._arrived(held.req, held.request, held.status),
            num_computed_tokens=held.kv.kv_committed_len,
            output_token_ids=[*held.req.output_ids],
            tables=(self._tables.read(held.kv),),
            is_running=False,
            was_scheduled=True,
        )


def _request_class() -> Any:
    from sglang.srt.managers.schedule_batch import Req

    return Req


def _sender(scheduler: Any) -> Any:
    channels = getattr(scheduler, "ipc_channels", scheduler)
    return getattr(channels, "send_to_tokenizer", None)


def _eos_token_ids(scheduler: Any) -> frozenset[int]:
    ids = getattr(scheduler.model_config, "hf_eos_token_id", None) or ()
    ids = {ids} if isinstance(ids, int) else set(ids)
    ids.add(getattr(getattr(scheduler, "tokenizer", None), "eos_token_id", None))
    return frozenset(token for token in ids if isinstance(token, int))
