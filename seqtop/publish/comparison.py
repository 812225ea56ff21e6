"""The difference between the requests of an engine before and after a step, as messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeGuard, get_args

import msgspec
from msgspec.structs import replace

from seqtop.publish.adapter import Adapter, EngineDescription, R, RequestDescription
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.wire.arrays import Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Event,
    Preemption,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
    WaitCause,
    WaitReason,
)
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot

_CAUSES: tuple[str, ...] = get_args(WaitCause)
_MAX_WORD: Final = 40
"""Characters of a longest word that is taken for a name."""
_RUNNING, _WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


class _Published(msgspec.Struct, Generic[R]):
    """A request as viewers know it."""

    request: R
    arrival: RequestArrived
    metrics: RequestMetrics
    seq_id: int
    num_tokens: int
    status: SequenceStatus = _WAITING
    num_computed_tokens: int = 0
    block_table: list[int] = []
    text: str = ""
    is_prefill: bool = True
    """True until it samples, and again after a preemption."""

    def remember(self, description: RequestDescription) -> None:
        """Notes that viewers know the described state."""
        self.status = description.status
        self.num_tokens = len(description.token_ids)
        self.num_computed_tokens = description.num_computed_tokens
        if self.block_table != description.block_table:
            self.block_table = [*description.block_table]
        if self.precedes(description.text):
            self.text = description.text

    def precedes(self, text: str | None) -> TypeGuard[str]:
        """Returns whether a text continues the published one, of which nothing can be revoked."""
        return text is not None and text.startswith(self.text)


class _Step(msgspec.Struct):
    """The contents of a step while the requests are compared."""

    batch: list[SequenceGroupMetadata | SequenceGroupMetadataDelta] = []
    updates: list[SequenceUpdate] = []
    metrics: dict[str, RequestMetrics] = {}
    preemptions: list[Preemption] = []
    wait_reasons: list[WaitReason] = []
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0

    def run(
        self,
        published: _Published[R],
        num_before: int,
        num_after: int,
        *,
        samples: bool,
        grown: RequestDescription | None,
    ) -> None:
        """Adds a request to the batch.

        Args:
            published: The request.
            num_before: Its computed tokens before the step, with those found in the prefix cache.
            num_after: Its computed tokens after the step.
            samples: Says that the step sampled a token.
            grown: The request, if its prompt has grown.
        """
        is_prompt, num_tokens = published.is_prefill, num_after - num_before
        # One that is polled may have computed its prompt and decoded since the last poll.
        known = published.num_tokens
        num_prefilled = min(num_after, known) - min(num_before, known) if is_prompt else 0
        self.num_prefill_tokens += num_prefilled
        self.num_decode_tokens += num_tokens - num_prefilled
        seq_id, request_id = published.seq_id, published.arrival.request_id
        group: SequenceGroupMetadata | SequenceGroupMetadataDelta
        if grown is None:
            stage = SequenceStage.PREFILL if is_prompt else SequenceStage.DECODE
            group = SequenceGroupMetadataDelta(
                seq_data_delta={seq_id: SequenceDataDelta([], 0.0, num_before, stage)},
                request_id=request_id,
                block_tables={},
                is_prompt=is_prompt,
                do_sample=samples,
                token_chunk_size=num_tokens,
            )
        else:
            data = SequenceData.from_seqs(grown.token_ids[: grown.num_prompt_tokens])
            data.update_num_computed_tokens(num_before)
            data.update_num_cached_tokens(grown.num_cached_tokens or 0)
            group = SequenceGroupMetadata(
                request_id=request_id,
                is_prompt=is_prompt,
                seq_data={seq_id: data},
                sampling_params=published.arrival.sampling_params,
                block_tables={seq_id: [*published.block_table]},
                do_sample=samples,
                token_chunk_size=num_tokens,
            )
        self.batch.append(group)


class Comparison(Generic[R]):
    """Compares what an engine has with what was published of it.

    Args:
        adapter: The engine.
        description: Its description.
    """

    def __init__(self, adapter: Adapter[R], description: EngineDescription) -> None:
        self._adapter = adapter
        self._description = description
        self._published: dict[str, _Published[R]] = {}
        # Requests whose end is published, and that the engine still lists.
        self._ended: dict[str, R] = {}
        self._num_sequences = 0
        self._num_steps = 0
        self._stats: StepStats | None = None
        self._num_preemptions = self._num_queries = self._num_hits = 0

    def between_steps(self, time: float) -> Iterator[Event]:
        """Yields the requests that ended or arrived since the last step.

        Args:
            time: The present time in seconds since the epoch.
        """
        requests = self._requests()
        for request_id in [name for name in self._published if name not in requests]:
            description = self._adapter.describe_request(self._published[request_id].request)
            yield self._end(request_id, description.status, time)
        for request_id, request in requests.items():
            if request_id not in self._published:
                description = self._adapter.describe_request(request)
                yield self._add(request_id, request, description, time)

    def after_step(self, start_time: float, time: float) -> Iterator[Event]:
        """Yields what a step changed; nothing if there was no request.

        Args:
            start_time: The start of the step in seconds since the epoch.
            time: Its end.
        """
        requests, describe = self._requests(), self._adapter.describe_request
        descriptions = {
            name: describe(request)
            for name, request in requests.items()
            if not self._waits_as_before(name, request)
        }
        for request_id, description in descriptions.items():
            if request_id not in self._published:
                # Nobody knows when it arrived. If the step ran it, then before the step.
                arrival_time = start_time if description.num_computed_tokens else time
                yield self._add(request_id, requests[request_id], description, arrival_time)
        for request_id, published in self._published.items():
            if request_id in requests:
                published.request = requests[request_id]
            else:
                gone = describe(published.request)
                descriptions[request_id] = dataclasses.replace(gone, status=_final(gone.status))
        step, num_running = _Step(), 0
        num_waiting = sum(name not in descriptions for name in requests)
        num_waiting += self._adapter.num_unlisted_requests()
        if not requests and not descriptions and not self._has_changed(num_waiting):
            return
        ended: list[tuple[str, SequenceStatus]] = []
        for request_id, description in descriptions.items():
            if request_id not in requests or SequenceStatus.is_finished(description.status):
                ended.append((request_id, description.status))
            elif description.status == _RUNNING:
                num_running += 1
            else:
                num_waiting += 1
            self._compare(request_id, description, step, start_time, time)
        self._num_steps += 1
        self._stats = self._new_stats(step, num_running, num_waiting)
        yield Step(
            step=self._num_steps - 1,
            start_time=start_time,
            time=time,
            execute=ExecuteModelRequest([*step.batch]),
            sequences=step.updates,
            stats=self._stats,
            metrics=step.metrics,
            preemptions=step.preemptions,
            wait_reasons=step.wait_reasons,
        )
        for request_id, status in ended:
            if request_id in requests:
                self._ended[request_id] = requests[request_id]
            yield self._end(request_id, status, time)

    def _has_changed(self, num_waiting: int) -> bool:
        """Returns whether other numbers of requests wait, or of blocks are cached, than before."""
        before = self._stats
        known = (0, None) if before is None else (before.num_waiting, before.num_cached_blocks)
        return known != (num_waiting, self._adapter.num_cached_blocks())

    def _waits_as_before(self, request_id: str, request: R) -> bool:
        """Returns whether a request that viewers know as waiting needs no new description."""
        published = self._published.get(request_id)
        return (
            published is not None
            and published.status == _WAITING
            and self._adapter.is_waiting(request)
        )

    def restore(self, time: float) -> Snapshot:
        """Returns the present state of all requests, after messages were lost.

        Args:
            time: The present time in seconds since the epoch.
        """
        before, self._published = self._published, {}
        snapshots: list[RequestSnapshot] = []
        for request_id, request in self._requests().items():
            description = self._adapter.describe_request(request)
            if SequenceStatus.is_finished(description.status):
                continue
            old = before.get(request_id)
            if old is not None and _mistake(old, description) is None:
                self._published[request_id] = old
            else:
                self._add(request_id, request, description, time)
            published = self._published[request_id]
            published.remember(description)
            snapshots.append(_snapshot(published, description))
        step = self._num_steps - 1
        return Snapshot(time=time, step=step, stats=self._stats, requests=snapshots)

    def _requests(self) -> Mapping[str, R]:
        """Returns the requests of the engine without those whose end is published."""
        requests = self._adapter.requests()
        if not self._ended:
            return requests
        self._ended = {
            name: request for name, request in self._ended.items() if requests.get(name) is request
        }
        return {name: request for name, request in requests.items() if name not in self._ended}

    def _add(
        self, request_id: str, request: R, description: RequestDescription, time: float
    ) -> RequestArrived:
        """Announces a request, and returns its announcement.

        Raises:
            WireError: The id is no string: no viewer could decode it.
        """
        if not isinstance(request_id, str):
            raise WireError(f"a request id is {_type(request_id)}, and not str")
        arrival_time = time if description.arrival_time is None else description.arrival_time
        prompt_ids = description.token_ids[: description.num_prompt_tokens]
        arrival = RequestArrived(
            request_id=request_id,
            arrival_time=arrival_time,
            seq_ids=[self._num_sequences],
            num_prompt_tokens=description.num_prompt_tokens,
            prompt=description.prompt,
            prompt_token_ids=Ints.of(prompt_ids),
            sampling_params=description.sampling_params,
            priority=description.priority,
            lora=description.lora,
            is_prompt_partial=description.is_prompt_partial,
        )
        self._published[request_id] = _Published(
            request,
            arrival,
            RequestMetrics(arrival_time, arrival_time, None, None, None),
            self._num_sequences,
            description.num_prompt_tokens,
        )
        self._num_sequences += 1
        return arrival

    def _end(self, request_id: str, status: SequenceStatus, time: float) -> RequestFinished:
        """Removes a request, and returns its end."""
        metrics = self._published.pop(request_id).metrics
        metrics.finished_time = time
        return RequestFinished(
            request_id=request_id, time=time, status=_final(status), metrics=metrics
        )

    def _compare(
        self,
        request_id: str,
        description: RequestDescription,
        step: _Step,
        start_time: float,
        time: float,
    ) -> None:
        """Adds to a step what it changed of a request.

        Raises:
            WireError: The request has fewer tokens than before, or a status that is not supported.
        """
        published, status = self._published[request_id], description.status
        if mistake := _mistake(published, description):
            raise WireError(f"request {request_id!r} {mistake}")
        is_finished = SequenceStatus.is_finished(status)
        has_grown = self._grow(published, description)
        new_ids = [*description.token_ids[published.num_tokens :]]
        computed, before = description.num_computed_tokens, published.num_computed_tokens
        if is_finished and computed < before:
            # The engine has reset it. A sampled token says that those before it are computed.
            computed = max(before, len(description.token_ids) - 1) if new_ids else before
        update = SequenceUpdate(seq_id=published.seq_id)
        table: Sequence[int] = [] if is_finished else description.block_table
        was_preempted = computed < before or (published.status == _RUNNING and status == _WAITING)
        if was_preempted:
            num_lost = before if status == _RUNNING else before - computed
            step.preemptions.append(
                Preemption(request_id=request_id, mode="recompute", num_lost_tokens=num_lost)
            )
            self._num_preemptions += 1
            published.status, published.block_table, before = _WAITING, [], before - num_lost
            published.is_prefill = True
            update.block_table = [*table]
        elif table != published.block_table:
            num_known = len(published.block_table)
            if table[:num_known] == published.block_table:
                update.new_blocks = [*table[num_known:]]
            else:
                update.block_table = [*table]
        ran = computed > before and (status == _RUNNING or is_finished)
        if ran:
            if published.status == _WAITING and description.num_cached_tokens is not None:
                cached = min(description.num_cached_tokens, computed)
                update.num_cached_tokens, before = cached, max(before, cached)
                if self._description.enable_prefix_caching:
                    self._num_queries += published.num_tokens
                    self._num_hits += cached
            grown = description if has_grown else None
            step.run(published, before, computed, samples=bool(new_ids), grown=grown)
            if _note_times(published.metrics, start_time, time, samples=bool(new_ids)):
                step.metrics[request_id] = published.metrics
        elif computed != before or was_preempted:
            update.num_computed_tokens = computed
        if status != (_RUNNING if ran else published.status) or (was_preempted and not ran):
            update.status = status
        if is_finished:
            update.block_table = []
        if published.precedes(description.text):
            update.text_delta = description.text[len(published.text) :]
        update.new_token_ids = new_ids
        if new_ids:
            published.is_prefill = False
        if update != SequenceUpdate(seq_id=published.seq_id):
            step.updates.append(update)
        if status == _WAITING and description.wait_cause is not None:
            step.wait_reasons.append(
                WaitReason(request_id=request_id, cause=description.wait_cause)
            )
        published.remember(description)

    def _grow(self, published: _Published[R], description: RequestDescription) -> bool:
        """Takes over the prompt of a request; returns whether it has grown."""
        arrival, num_prompt_tokens = published.arrival, description.num_prompt_tokens
        num_new = num_prompt_tokens - arrival.num_prompt_tokens
        if not num_new:
            return False
        arrival.num_prompt_tokens = num_prompt_tokens
        arrival.prompt_token_ids = Ints.of(description.token_ids[:num_prompt_tokens])
        published.num_tokens += num_new
        if published.status == _RUNNING and self._description.enable_prefix_caching:
            self._num_queries += num_new
        return True

    def _new_stats(self, step: _Step, num_running: int, num_waiting: int) -> StepStats:
        description, num_free = self._description, self._adapter.num_free_blocks()
        num_cached = self._adapter.num_cached_blocks()
        num_usable = description.num_gpu_blocks - description.num_reserved_blocks
        return StepStats(
            num_running=num_running,
            num_waiting=num_waiting,
            num_used_blocks=num_usable - num_free,
            num_free_blocks=num_free - (num_cached or 0),
            num_cached_blocks=num_cached,
            num_prefill_tokens=step.num_prefill_tokens,
            num_decode_tokens=step.num_decode_tokens,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            num_preemptions=self._num_preemptions,
            scheduler_time=None,
            model_forward_time=None,
            model_execute_time=None,
        )


def _final(status: SequenceStatus) -> SequenceStatus:
    """Returns the final status of a request that has left the engine with `status`."""
    if SequenceStatus.is_finished(status):
        return status
    return SequenceStatus.FINISHED_ABORTED


def _mistake(published: _Published[R], description: RequestDescription) -> str | None:
    """Returns what an adapter says of a request that cannot be; `None` if it can."""
    if description.wait_cause is not None and description.wait_cause not in _CAUSES:
        cause = description.wait_cause
        shown = repr(cause) if isinstance(cause, str) and len(cause) <= _MAX_WORD else _type(cause)
        return f"has the wait_cause {shown}: there are {', '.join(_CAUSES)}"
    if description.status == SequenceStatus.SWAPPED:
        return "is SWAPPED, which seqtop.publish does not support"
    given: Any = description.num_prompt_tokens
    if not isinstance(given, int):
        return f"has num_prompt_tokens {_type(given)}"
    num_prompt_tokens = published.arrival.num_prompt_tokens
    may_grow = published.arrival.is_prompt_partial and published.num_tokens == num_prompt_tokens
    is_other = description.num_prompt_tokens != num_prompt_tokens
    if is_other and not (may_grow and description.num_prompt_tokens > num_prompt_tokens):
        return f"has {description.num_prompt_tokens} prompt tokens, and had {num_prompt_tokens}"
    if len(description.token_ids) < published.num_tokens:
        return f"has {len(description.token_ids)} tokens, and had {published.num_tokens}"
    return None


def _type(value: Any) -> str:
    """Returns what is said of a wrong value, which may be a text of a request."""
    return f"of the type {type(value).__name__}"


def _note_times(metrics: RequestMetrics, start_time: float, time: float, *, samples: bool) -> bool:
    """Notes a step in the metrics; returns whether viewers cannot derive the change."""
    is_new = metrics.first_scheduled_time is None
    if is_new:
        metrics.first_scheduled_time = start_time
        metrics.time_in_queue = start_time - metrics.arrival_time
    if samples:
        metrics.last_token_time = time
        if metrics.first_token_time is None:
            metrics.first_token_time, is_new = time, True
    return is_new


def _snapshot(published: _Published[R], description: RequestDescription) -> RequestSnapshot:
    arrival = replace(published.arrival, metrics=published.metrics)
    update = SequenceUpdate(
        seq_id=published.seq_id,
        status=description.status,
        num_computed_tokens=description.num_computed_tokens,
        num_cached_tokens=description.num_cached_tokens or 0,
        block_table=[*description.block_table],
    )
    output_ids = Ints.of(description.token_ids[description.num_prompt_tokens :])
    sequence = SequenceSnapshot(update=update, output_token_ids=output_ids, text=published.text)
    return RequestSnapshot(arrival=arrival, sequences=[sequence])
