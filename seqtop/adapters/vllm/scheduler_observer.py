"""Observes a V1 scheduler, on the scheduler's own thread.

It does as little as possible: for each step it copies references and integers, never iterates over
the whole waiting queue, and leaves all further computations to the other process.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from seqtop.adapters.vllm.engine_description import Layout
from seqtop.adapters.vllm.free_block_counter import FreeBlockCounter
from seqtop.adapters.vllm.observations import (
    Admitted,
    AnyObservation,
    Arrived,
    Preempted,
    RequestEnded,
    Scheduled,
    Stepped,
    Tables,
)
from seqtop.adapters.vllm.wrapping import Wrap

_SAMPLING_FIELDS: Final = (
    "n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed"
    " stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs detokenize"
    " skip_special_tokens include_stop_str_in_output"
).split()

_MAX_DEFERRED_CHECKED: Final = 256
"""The number of deferred waiting requests that are checked in each step."""

_PLAIN_WAITING: Final = ("WAITING", "PREEMPTED", "RUNNING")


class SchedulerObserver:
    """Wraps the methods of one scheduler and sends observations of them.

    Args:
        scheduler: vLLM's V1 scheduler.
        wrap: Wraps a method.
        send: Receives the observations.
        layout: The way to read block tables.

    Raises:
        AttributeError: The scheduler differs from those of the supported versions.
    """

    def __init__(
        self,
        scheduler: Any,
        wrap: Wrap,
        send: Callable[[AnyObservation], None],
        layout: Layout,
    ) -> None:
        self._scheduler = scheduler
        self._send = send
        self._layout = layout
        self._pool = FreeBlockCounter(scheduler.kv_cache_manager.block_pool, wrap)
        self._known: set[str] = set()
        self._held: dict[str, str] = {}
        """The last reported status of requests that wait for something other than their turn."""
        self._preempted: list[Preempted] = []
        self._ended: list[RequestEnded] = []
        self._scheduled: list[Scheduled] = []
        """Calls of `schedule` since the last reported step."""
        self._in_flight: deque[tuple[Any, Scheduled, float]] = deque()
        """Scheduled steps without outputs so far, with the time at which scheduling ended."""
        self._start = self._clock = self._back = 0.0
        wrap(scheduler, "add_request", after=self._after_add_request)
        wrap(scheduler, "schedule", before=self._before_schedule, after=self._after_schedule)
        wrap(scheduler, "_preempt_request", before=self._before_preempt)
        wrap(scheduler, "_free_request", before=self._before_free)
        wrap(scheduler, "update_from_output", before=self._before_update, after=self._after_update)

    def _after_add_request(self, _result: object, request: Any) -> None:
        request_id = request.request_id
        if request_id in self._known:
            return  # more input for a streaming session
        self._known.add(request_id)
        status = request.status.name
        if status != "WAITING":
            self._held[request_id] = status
        params = request.sampling_params
        self._send(
            Arrived(
                request_id=request_id,
                arrival_time=request.arrival_time,
                status=status,
                priority=request.priority,
                num_prompt_tokens=request.num_prompt_tokens,
                prompt_token_ids=request.prompt_token_ids or [],
                sampling_params=(
                    {name: getattr(params, name, None) for name in _SAMPLING_FIELDS}
                    if params is not None
                    else None
                ),
            )
        )

    def _before_schedule(self, *_: Any, **__: Any) -> None:
        self._start, self._clock = time.time(), time.perf_counter()

    def _after_schedule(self, output: Any, *_: Any, **__: Any) -> None:
        ended = time.perf_counter()
        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        admitted = [
            Admitted(new.req_id, new.num_computed_tokens, self._ordered(new.block_ids))
            for new in output.scheduled_new_reqs
        ]
        appended, replaced = [], []
        for position, tables in enumerate(cached.new_block_ids):
            if tables is None:
                continue
            request_id = cached.req_ids[position]
            if request_id in resumed:
                computed = cached.num_computed_tokens[position]
                admitted.append(Admitted(request_id, computed, self._ordered(tables)))
            elif self._layout.whole_tables:
                replaced.append((request_id, self._tables_of(request_id)))
            else:
                appended.append((request_id, tables))
        waiting = self._scheduler.waiting
        observation = Scheduled(
            start_time=self._start,
            duration=ended - self._clock,
            preempted=self._preempted,
            admitted=admitted,
            appended=appended,
            replaced=replaced,
            num_running=len(self._scheduler.running),
            num_tokens=output.total_num_scheduled_tokens,
            head=waiting.peek_request().request_id if waiting else None,
        )
        self._preempted = []
        self._scheduled.append(observation)
        self._in_flight.append((output, observation, ended))

    def _before_preempt(self, request: Any, *_: Any, **__: Any) -> None:
        # vLLM does not pass on the request that needs the blocks, but `schedule`, which calls the
        # wrapper that calls this, has it in a variable. Other callers preempt for no request.
        caller = sys._getframe(2)
        cause = caller.f_locals.get("request") if caller.f_code.co_name == "schedule" else None
        self._preempted.append(
            Preempted(
                request_id=request.request_id,
                num_lost_tokens=request.num_computed_tokens,
                for_request_id=getattr(cause, "request_id", None),
            )
        )

    def _before_free(self, request: Any, *_: Any, **__: Any) -> None:
        request_id = request.request_id
        self._known.discard(request_id)
        self._held.pop(request_id, None)
        self._ended.append(
            RequestEnded(
                request_id=request_id,
                status=request.status.name,
                stop_reason=request.stop_reason,
                num_computed_tokens=request.num_computed_tokens,
            )
        )

    def _before_update(self, *_: Any, **__: Any) -> None:
        self._back = time.perf_counter()

    def _after_update(
        self, outputs: dict[int, Any], scheduler_output: Any, *_: Any, **__: Any
    ) -> None:
        output, run, scheduled_at = self._in_flight.popleft()
        while output is not scheduler_output:  # a step that failed
            output, run, scheduled_at = self._in_flight.popleft()
        scheduler = self._scheduler
        running = scheduler.running
        drafts = scheduler_output.scheduled_spec_decode_tokens
        held = self._changed_held()
        others_run = (
            self._ended or held or any(each.admitted or each.preempted for each in self._scheduled)
        )
        # No container per request: hundreds in each step would trigger the garbage collector.
        got = [
            each
            for of_client in outputs.values()
            for each in of_client.outputs
            if each.new_token_ids
        ]
        num_scheduled = scheduler_output.num_scheduled_tokens
        # vLLM processes outputs in the order of scheduling, and only groups them by client.
        all_got = len(got) == len(num_scheduled) and len(outputs) == 1
        observation = Stepped(
            scheduled=self._scheduled,
            start_time=run.start_time,
            scheduler_time=run.duration,
            execute_time=self._back - scheduled_at,
            time=time.time(),
            num_scheduled_tokens=num_scheduled,
            num_draft_tokens={name: len(ids) for name, ids in drafts.items()},
            output_ids=None if all_got else [each.request_id for each in got],
            output_token_ids=[each.new_token_ids for each in got],
            ended=self._ended,
            running=[request.request_id for request in running] if others_run else None,
            num_computed_tokens=[request.num_computed_tokens for request in running],
            held=held,
            num_waiting=scheduler.get_request_counts()[1],
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
        )
        self._scheduled, self._ended = [], []
        self._send(observation)

    def _changed_held(self) -> dict[str, str]:
        """Returns the new statuses of waiting requests whose reason to wait has changed."""
        scheduler = self._scheduler
        changes: dict[str, str] = {}
        deferred: Iterable[Any] = (
            getattr(scheduler, "deferred_waiting", None)
            or getattr(scheduler, "skipped_waiting", None)
            or ()
        )
        for request in islice(deferred, _MAX_DEFERRED_CHECKED):
            status = request.status.name
            if status not in _PLAIN_WAITING and self._held.get(request.request_id) != status:
                self._held[request.request_id] = changes[request.request_id] = status
        for request_id, reported in list(self._held.items()):
            request = scheduler.requests.get(request_id)
            status = request.status.name if request is not None else "WAITING"
            if status != reported:
                changes[request_id] = status
                if status in _PLAIN_WAITING:
                    del self._held[request_id]
                else:
                    self._held[request_id] = status
        return changes

    def _tables_of(self, request_id: str) -> Tables:
        return self._ordered(self._scheduler.kv_cache_manager.get_block_ids(request_id))

    def _ordered(self, tables: Tables) -> Tables:
        main = self._layout.main_group
        return (tables[main], *tables[:main], *tables[main + 1 :]) if main else tables
