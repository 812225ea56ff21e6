"""Observes a V1 scheduler, on the scheduler's own thread.

It does as little as possible: for each step it copies references and integers, never iterates over
the whole waiting queue, and leaves all further computations to the other process.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Any, Final

from seqtop.adapters.observations import (
    Admitted,
    Arrived,
    Controlled,
    Counts,
    CurrentRequest,
    ObservationSink,
    Preempted,
    RequestEnded,
    Scheduled,
    StreamingInput,
    Tables,
    WaitingRequest,
)
from seqtop.adapters.step_journal import Batch, StepJournal
from seqtop.adapters.vllm.admission import Admission, waiting_requests
from seqtop.adapters.vllm.engine_description import Layout
from seqtop.adapters.vllm.free_block_counter import FreeBlockCounter
from seqtop.adapters.vllm.prefix_cache_observer import PrefixCacheObserver
from seqtop.adapters.vllm.probe import request_class
from seqtop.adapters.wrapping import Wrap

_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SAMPLING_FIELDS: Final = (
    "n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed"
    " stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs detokenize"
    " skip_special_tokens include_stop_str_in_output"
).split()

_WAITING_FOR_INPUT: Final = "WAITING_FOR_STREAMING_REQ"


class SchedulerObserver:
    """Wraps the methods of one scheduler and sends observations of them.

    Args:
        scheduler: vLLM's V1 scheduler.
        wrap: Wraps a method.
        publisher: Receives the observations.
        layout: The way to read block tables.
        not_available: Keys of columns and figures for which the scheduler lacks something.
        clock: Returns the time in seconds since the epoch.
        timer: Returns seconds since some time, to measure durations.

    Raises:
        AttributeError: The scheduler lacks something without which nothing can be observed.
    """

    def __init__(
        self,
        scheduler: Any,
        wrap: Wrap,
        publisher: ObservationSink,
        layout: Layout,
        not_available: Collection[str] = (),
        *,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler = scheduler
        self._clock, self._timer = clock, timer
        self._publisher = publisher
        # The outputs of the n-th call of `schedule` are those of the n-th reported step.
        self._journal = StepJournal(publisher.send, clock, timer)
        self._layout = layout
        has_cache = scheduler.vllm_config.cache_config.enable_prefix_caching
        self._cache = (
            PrefixCacheObserver(scheduler, wrap)
            if has_cache and "prefix_misses" not in not_available
            else None
        )
        self._pool = FreeBlockCounter(
            scheduler.kv_cache_manager.block_pool,
            wrap,
            freed=self._before_pool_frees if layout.whole_tables else None,
            evicted=self._cache.evicted if self._cache is not None else None,
            counts_cached="cached_blocks" not in not_available,
        )
        self._admission = Admission(scheduler, wrap, knows_reasons="why" not in not_available)
        has_encoder = "encoder" not in not_available and scheduler.max_num_encoder_input_tokens
        self._encoder_cache = scheduler.encoder_cache_manager if has_encoder else None
        self._is_new = False
        self._blocked: dict[str, tuple[str, int]] = {}
        """The last reported status and computed tokens of requests that wait for something other
        than their turn."""
        self._sessions: dict[str, str] = {}
        """The last reported status of streaming sessions."""
        self._inputs: list[StreamingInput] = []
        """Input of sessions that has not been sent yet."""
        self._changed_tables: set[str] = set()
        """Requests whose whole table has to be sent."""
        self._held: set[str] = set()
        """Finished requests whose blocks a KV connector holds."""
        self._released: list[str] = []
        self._has_preempted = False
        """True if the current call of `schedule` has preempted a request."""
        self._controls: list[Controlled] = []
        self._parents: dict[str, str] = {}
        """By the id of each sample, that of its request."""
        if "parents" not in not_available:
            wrap(request_class(), "from_engine_core_request", after=self._after_create)
        wrap(scheduler, "add_request", before=self._before_add, after=self._after_add)
        wrap(scheduler, "schedule", before=self._before_schedule, after=self._after_schedule)
        wrap(scheduler, "_preempt_request", before=self._before_preempt)
        wrap(scheduler, "_free_request", before=self._before_free, after=self._after_free)
        wrap(
            scheduler,
            "update_from_output",
            before=self._journal.begin_processing,
            after=self._after_update,
        )
        if hasattr(scheduler, "_free_blocks"):
            wrap(scheduler, "_free_blocks", before=self._before_free_blocks)
        if hasattr(scheduler, "_update_request_as_session"):
            wrap(scheduler, "_update_request_as_session", after=self._after_input)
        if hasattr(scheduler, "reset_prefix_cache"):
            wrap(scheduler, "reset_prefix_cache", before=self._before_reset)
        if hasattr(scheduler, "set_pause_state"):
            wrap(scheduler, "set_pause_state", before=self._before_pause)
        if scheduler.requests or (self._cache is not None and self._cache.has_content):
            self._send_all()

    def _after_create(self, _result: object, request: Any, *_: Any, **__: Any) -> None:
        """Records the parent of a sample. The thread is the one that receives requests."""
        # vLLM's `ParentRequest` calls samples "0_" and so on, followed by the id of their request:
        # the client's, and 9 random characters unless these are turned off.
        index, _, parent = request.request_id.partition("_")
        if index.isdecimal() and request.external_req_id in (parent, parent[:-9]):
            self._parents[request.request_id] = parent

    def _before_add(self, request: Any, *_: Any, **__: Any) -> None:
        # Otherwise it is more input for a streaming session, or its end.
        self._is_new = request.request_id not in self._scheduler.requests

    def _after_add(self, _result: object, request: Any, *_: Any, **__: Any) -> None:
        if self._is_new and request.request_id in self._scheduler.requests:
            arrived = self._arrived(request)
            arrived.num_schedule_calls = self._journal.num_schedule_calls
            if self._journal.ended or self._released:
                arrived.before = self._take_end(request.request_id)
            self._publisher.send(arrived)
        self._send_inputs()

    def _take_end(self, request_id: str) -> RequestEnded | None:
        """Returns the end, since the last step, of an earlier request with this id.

        Nothing else of the earlier request is reported any more: the id is now that of another.
        """
        journal = self._journal
        ends = [ended for ended in journal.ended if ended.request_id == request_id]
        if not ends and request_id not in self._released:
            return None
        journal.ended = [ended for ended in journal.ended if ended.request_id != request_id]
        self._released = [released for released in self._released if released != request_id]
        for run in journal.scheduled:
            run.admitted = [new for new in run.admitted if new.request_id != request_id]
            run.appended = [new for new in run.appended if new[0] != request_id]
            run.preempted = [new for new in run.preempted if new.request_id != request_id]
            run.wait_reasons = [new for new in run.wait_reasons if new[0] != request_id]
        if self._cache is not None:
            self._cache.disown(request_id)
        return ends[0] if ends else None

    def _arrived(self, request: Any) -> Arrived:
        request_id, status = request.request_id, request.status.name
        if status.startswith("WAITING_FOR_"):
            self._blocked[request_id] = status, request.num_computed_tokens
        if getattr(request, "resumable", False) and not request.is_finished():
            self._sessions[request_id] = status
        params = request.sampling_params
        lora = getattr(request, "lora_request", None)
        return Arrived(
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
            lora=lora.lora_name if lora else "",
            parent_request_id=self._parents.get(request.request_id, ""),
            # Older versions store it in the request.
            eos_token_id=getattr(params, "eos_token_id", getattr(request, "eos_token_id", None)),
            cache_salt=_digest(getattr(request, "cache_salt", None)),
            traceparent=_traceparent(getattr(request, "trace_headers", None)),
            transfer_id=_transfer_id(request),
            num_encoder_inputs=len(getattr(request, "mm_features", ())),
        )

    def _after_input(self, _result: object, session: Any, *_: Any, **__: Any) -> None:
        self._inputs.append(
            StreamingInput(
                request_id=session.request_id,
                time=self._clock(),
                prompt_token_ids=session.prompt_token_ids or [],
                num_computed_tokens=session.num_computed_tokens,
                arrival_time=session.arrival_time,
            )
        )

    def _send_inputs(self) -> None:
        for arrived in self._inputs:
            self._sessions[arrived.request_id] = "WAITING"
            self._publisher.send(arrived)
        self._inputs = []

    def _before_reset(self, reset_running_requests: bool = False, *_: Any, **__: Any) -> None:
        self._control("reset_prefix_cache", bool(reset_running_requests))

    def _before_pause(self, pause_state: Any, *_: Any, **__: Any) -> None:
        self._control("set_pause_state", pause_state.name)

    def _control(self, name: str, argument: bool | str) -> None:
        self._controls.append(Controlled(name, argument, self._journal.num_schedule_calls))

    def _before_schedule(self, *_: Any, **__: Any) -> None:
        self._journal.begin_schedule()
        self._journal.num_schedule_calls += 1

    def _after_schedule(self, output: Any, *_: Any, **__: Any) -> None:
        ended = self._timer()
        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        admitted = [
            self._admitted(new.req_id, new.num_computed_tokens, new.block_ids)
            for new in output.scheduled_new_reqs
        ]
        appended = []
        if any(cached.new_block_ids):  # in most steps nobody gets a block
            for position, tables in enumerate(cached.new_block_ids):
                if tables is None:
                    continue
                request_id = cached.req_ids[position]
                if request_id in resumed:
                    computed = cached.num_computed_tokens[position]
                    admitted.append(self._admitted(request_id, computed, tables))
                elif self._layout.whole_tables:
                    self._changed_tables.add(request_id)
                else:
                    appended.append((request_id, tables))
        run = Scheduled(
            start_time=self._journal.start_time,
            duration=ended - self._journal.started_at,
            admitted=admitted,
            appended=appended,
            wait_reasons=self._admission.take_reasons(output, has_preempted=self._has_preempted),
            num_encoder_tokens=self._num_encoder_tokens(output),
        )
        if self._cache is not None:
            requests = self._scheduler.requests
            self._cache.admitted([requests[member.request_id] for member in admitted])
        self._has_preempted = False
        self._journal.in_flight.append(Batch(output, self._journal.add_scheduled(run), ended))

    def _num_encoder_tokens(self, output: Any) -> int | None:
        if self._encoder_cache is None:
            return None
        num_tokens: int = sum(
            self._scheduler.requests[request_id].get_num_encoder_embeds(index)
            for request_id, indexes in output.scheduled_encoder_inputs.items()
            for index in indexes
        )
        return num_tokens

    def _admitted(self, request_id: str, num_computed: int, tables: Tables) -> Admitted:
        external = self._admission.num_external.pop(request_id, 0)
        return Admitted(
            request_id, num_computed, self._ordered(tables), min(external, num_computed)
        )

    def _before_pool_frees(self, caller: FrameType) -> None:
        """Records the request in whose table vLLM is about to replace blocks by null blocks."""
        if caller.f_code.co_name != "free":  # frees the whole table
            request_id = caller.f_locals.get("request_id")
            if isinstance(request_id, str):
                self._changed_tables.add(request_id)

    def _before_preempt(self, request: Any, *_: Any, **__: Any) -> None:
        # vLLM does not pass on the request that needs the blocks, but `schedule`, which calls the
        # wrapper that calls this, has it in a variable. Other callers preempt for no request.
        caller = sys._getframe(2)
        cause = None
        if caller.f_code.co_name == "schedule":
            self._has_preempted, cause = True, caller.f_locals.get("request")
        self._journal.preempted.append(
            Preempted(
                request_id=request.request_id,
                # Without drafts in flight.
                num_lost_tokens=min(request.num_computed_tokens, request.num_tokens),
                for_request_id=getattr(cause, "request_id", None),
            )
        )

    def _before_free(self, request: Any, *_: Any, **__: Any) -> None:
        request_id = request.request_id
        self._blocked.pop(request_id, None)
        self._sessions.pop(request_id, None)
        self._parents.pop(request_id, None)
        self._admission.num_external.pop(request_id, None)
        self._journal.ended.append(
            RequestEnded(
                request_id=request_id,
                status=request.status.name,
                stop_reason=request.stop_reason,
                num_computed_tokens=request.num_computed_tokens,
                time=self._clock(),
                num_schedule_calls=self._journal.num_schedule_calls,
            )
        )

    def _after_free(self, _result: object, request: Any, *_: Any, **__: Any) -> None:
        if request.request_id in self._scheduler.requests:
            # A KV connector still sends its blocks, or loads into them.
            self._held.add(request.request_id)
            self._journal.ended[-1].tables = self._tables_of(request.request_id)

    def _before_free_blocks(self, request: Any, *_: Any, **__: Any) -> None:
        if request.request_id in self._held:
            self._held.remove(request.request_id)
            self._released.append(request.request_id)

    def _after_update(
        self,
        outputs: dict[int, Any],
        scheduler_output: Any,
        model_runner_output: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        batch = self._journal.take_batch(scheduler_output)
        scheduler = self._scheduler
        running = scheduler.running
        drafts = scheduler_output.scheduled_spec_decode_tokens
        num_scheduled = scheduler_output.num_scheduled_tokens
        # No container per request: hundreds in each step would trigger the garbage collector.
        of_clients = [of_client.outputs for of_client in outputs.values()]
        token_ids = [output.new_token_ids for part in of_clients for output in part]
        # vLLM processes outputs in the order of scheduling, and only groups them by client.
        output_ids = None
        if len(of_clients) != 1 or len(token_ids) != len(num_scheduled) or not all(token_ids):
            output_ids = [
                output.request_id for part in of_clients for output in part if output.new_token_ids
            ]
            token_ids = [new for new in token_ids if new]
        self._journal.send_step(
            batch,
            num_scheduled,
            [request.request_id for request in running],
            num_draft_tokens={name: len(ids) for name, ids in drafts.items()},
            output_ids=output_ids,
            output_token_ids=token_ids,
            released=self._released,
            num_computed_tokens=[request.num_computed_tokens for request in running],
            tables=[
                (request_id, self._tables_of(request_id))
                for request_id in self._changed_tables
                if request_id in scheduler.requests
            ],
            waiting=self._changed_waiting(),
            counts=self._counts(),
            cache_events=self._cache.take() if self._cache is not None else [],
            cuda_graph=_cuda_graph(model_runner_output),
            num_encoder_tokens=batch.run.num_encoder_tokens,
            num_used_encoder_slots=_num_used_slots(self._encoder_cache),
            controls=self._controls,
        )
        self._released, self._controls = [], []
        self._changed_tables.clear()
        if self._inputs:
            self._send_inputs()
        if self._publisher.wants_all_requests:
            self._send_all()

    def _changed_waiting(self) -> list[WaitingRequest]:
        """Returns the waiting requests whose status has changed, other than by a preemption."""
        requests = self._scheduler.requests
        changed: list[WaitingRequest] = []
        for request in self._admission.loading:
            status = request.status.name
            if status.startswith("WAITING_FOR_") and request.request_id in requests:
                self._blocked[request.request_id] = status, request.num_computed_tokens
                changed.append(self._waiting(request, status))
        self._admission.loading.clear()
        for request_id, reported in list(self._blocked.items()):
            request = requests.get(request_id)
            if request is None:
                del self._blocked[request_id]
                continue
            status = request.status.name
            # A load that fails takes computed tokens back.
            if (status, request.num_computed_tokens) == reported:
                continue
            if status.startswith("WAITING_FOR_"):
                self._blocked[request_id] = status, request.num_computed_tokens
            else:
                del self._blocked[request_id]
            if status.startswith("WAITING") or status == "PREEMPTED":
                changed.append(self._waiting(request, status))
        fed = {arrived.request_id for arrived in self._inputs}
        for request_id, last_status in self._sessions.items():
            request = requests[request_id]
            # One that got input at once has stopped to wait for it in between.
            status = _WAITING_FOR_INPUT if request_id in fed else request.status.name
            if status == _WAITING_FOR_INPUT != last_status:
                changed.append(self._waiting(request, status))
            self._sessions[request_id] = status
        return changed

    def _waiting(self, request: Any, status: str) -> WaitingRequest:
        request_id = request.request_id
        return WaitingRequest(
            request_id, status, request.num_computed_tokens, self._tables_of(request_id)
        )

    def _counts(self) -> Counts:
        return Counts(
            num_waiting=self._scheduler.get_request_counts()[1],
            num_free_blocks=self._pool.num_free,
            num_cached_blocks=self._pool.num_cached,
            num_prefix_queries=self._admission.num_prefix_queries,
            num_prefix_hits=self._admission.num_prefix_hits,
            num_late_blocks=_num_late_blocks(self._scheduler),
        )

    def _send_all(self) -> None:
        """Reports the present state of all requests."""
        scheduler = self._scheduler
        running = {request.request_id: request for request in scheduler.running}
        waiting = {request.request_id: request for request in waiting_requests(scheduler)}
        # Those in no queue have finished, and a KV connector holds their blocks.
        requests = {**running, **waiting, **scheduler.requests}
        self._held = {
            request_id for request_id, request in requests.items() if request.is_finished()
        }
        for request in waiting.values():
            self._admission.note_loading(request)
        self._journal.send_all(
            [
                CurrentRequest(
                    arrived=self._arrived(request),
                    num_computed_tokens=request.num_computed_tokens,
                    output_token_ids=list(request.output_token_ids),
                    tables=self._tables_of(request_id),
                    is_running=request_id in running,
                    was_scheduled=request_id in running
                    or request.num_preemptions > 0
                    or request.num_computed_tokens > 0,
                )
                for request_id, request in requests.items()
            ],
            self._counts(),
        )

    def _tables_of(self, request_id: str) -> Tables:
        return self._ordered(self._scheduler.kv_cache_manager.get_block_ids(request_id))

    def _ordered(self, tables: Tables) -> Tables:
        main = self._layout.main_group
        return (tables[main], *tables[:main], *tables[main + 1 :]) if main else tables


def _num_late_blocks(scheduler: Any) -> int:
    """Returns the blocks in no table that vLLM frees when the steps in flight have ended.

    It frees so with a KV connector, which may write to a block as soon as it is free, while several
    steps are in flight (`defer_block_free`).
    """
    freed_late = getattr(scheduler, "deferred_frees", None)
    if not freed_late:
        return 0
    references = Counter(
        block.block_id for _, blocks in freed_late for block in blocks if not block.is_null
    )
    blocks = scheduler.kv_cache_manager.block_pool.blocks
    # A shared one has further references, in the tables of others.
    return sum(blocks[block].ref_cnt == number for block, number in references.items())


def _digest(salt: str | None) -> str:
    """Returns text that is equal for equal salts only, and does not reveal them."""
    return hashlib.sha256(salt.encode(errors="replace")).hexdigest()[:16] if salt else ""


def _traceparent(headers: Mapping[str, str] | None) -> str:
    """Returns the header `traceparent`; empty if there is none, or it is malformed."""
    value = (headers or {}).get("traceparent", "")
    return value if _TRACEPARENT.fullmatch(value) else ""


def _transfer_id(request: Any) -> str:
    """Returns the id of a transfer that the other instance has, too; empty without one.

    Clients of the Mooncake connector choose it. That of NIXL is the id of the request that computes
    the prompt.
    """
    params = getattr(request, "kv_transfer_params", None)
    if not isinstance(params, Mapping):
        return ""
    is_sender = params.get("do_remote_decode")
    known = params.get("transfer_id") or (
        request.request_id if is_sender else params.get("remote_request_id")
    )
    return str(known) if isinstance(known, str | int) else ""


def _num_used_slots(cache: Any) -> int | None:
    if cache is None:
        return None
    # Free slots, and those that can be freed; encoder-decoder models have no others.
    num_unused = getattr(cache, "num_freeable_slots", cache.num_free_slots)
    return int(cache.cache_size - num_unused)


def _cuda_graph(output: Any) -> tuple[str, int, int] | None:
    stats = getattr(output, "cudagraph_stats", None)
    if stats is None:
        return None
    return str(stats.runtime_mode), stats.num_unpadded_tokens, stats.num_padded_tokens
