"""Combines the observations of one step: the changes of each sequence and of first-time metrics.

With async scheduling the next step is already scheduled when the outputs of this one arrive. The
requests that ran are then this step's. Tables, computed tokens and statuses are the current ones of
the scheduler. A request that ends while its next step is in flight is also in the batch of that
step, which has no update for it.
"""

from __future__ import annotations

from typing import Final

from seqtop.adapters.detokenizer import StreamDetokenizer
from seqtop.adapters.observations import (
    RequestEnded,
    Scheduled,
    Stepped,
    Tables,
    WaitingRequest,
)
from seqtop.adapters.request import PublishedRequest, engine_status
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state.step_costs import charge_times, own_times
from seqtop.wire.messages import Preemption, PrefixMiss, SequenceUpdate

_WAITING: Final = SequenceStatus.WAITING
_RUNNING: Final = SequenceStatus.RUNNING
_SWAPPED: Final = SequenceStatus.SWAPPED


class StepBuilder:
    """Applies a step's observations to `requests` (by internal id) and collects the changes.

    Requests in `ended_in_flight` ended after the step was scheduled. `since` is the end of the step
    before, in epoch seconds.
    """

    def __init__(
        self,
        observation: Stepped,
        num_scheduled_tokens: dict[str, int],
        running: list[str],
        requests: dict[str, PublishedRequest],
        ended_in_flight: dict[str, PublishedRequest],
        detokenizer: StreamDetokenizer | None,
        since: float,
    ) -> None:
        self._observation = observation
        self._since = since
        self._running = running
        self._num_scheduled_tokens = num_scheduled_tokens
        ran = list(num_scheduled_tokens)
        self._output_ids = ran if observation.output_ids is None else observation.output_ids
        self._requests = requests
        self._ended_in_flight = ended_in_flight
        self._detokenizer = detokenizer
        self._updates: dict[str, SequenceUpdate] = {}
        self._batch: list[SequenceGroupMetadataDelta] = []
        self._groups: dict[str, SequenceGroupMetadataDelta] = {}
        """The groups of `_batch` whose requests have not ended, by internal id."""
        self._admitted: set[str] = set()
        self.metrics: dict[str, RequestMetrics] = {}
        """Metrics of requests that were scheduled, or sampled, for the first time."""
        self.preemptions: list[Preemption] = []
        self._swapped_out: list[tuple[int, int]] = []
        self._swapped_in: list[tuple[int, int]] = []
        self.num_prefill_tokens = self.num_decode_tokens = 0
        self._add_executed()
        for run in observation.scheduled:
            self._apply_preemptions(run)
            self._apply_swaps_out(run)
            self._apply_swaps_in(run)
            self._apply_admissions(run)
            self._apply_new_blocks(run)
        for request_id, tables in observation.tables:
            if request_id in requests:
                _replace(self._update(request_id), tables)
        self._apply_outputs()
        self._apply_computed_tokens()
        for waiting in observation.waiting:
            self._apply_waiting(waiting)
        self._apply_running_statuses()
        self._finished = [
            request.name
            for ended in observation.ended
            if (request := requests.get(ended.request_id)) is not None
        ]
        for ended in observation.ended:
            self._end(ended)
        for request_id in observation.released:
            if request_id in requests:
                _replace(self._update(request_id), ())

    def execute(self) -> ExecuteModelRequest:
        """Returns the requests that ran."""
        return ExecuteModelRequest(
            [*self._batch],
            blocks_to_swap_in=self._swapped_in,
            blocks_to_swap_out=self._swapped_out,
            running_queue_size=len(self._running),
            finished_requests_ids=self._finished,
        )

    def updates(self, prefix_misses: dict[str, list[PrefixMiss]]) -> list[SequenceUpdate]:
        """Returns the changed sequences after the step. Those that lost their blocks are first.

        Args:
            prefix_misses: Those of the requests that were admitted, by internal id.
        """
        updates: list[SequenceUpdate] = []
        for request_id, update in self._updates.items():
            request, group = self._requests[request_id], self._groups.get(request_id)
            status: SequenceStatus | None = request.status
            num_computed: int | None = request.num_computed_tokens
            if group is not None:  # the batch says that it runs, and by how much it advances
                delta = group.seq_data_delta[request.seq_id]
                advanced = delta.new_num_computed_tokens + (group.token_chunk_size or 1)
                status = None if status is _RUNNING else status
                num_computed = None if num_computed == advanced else num_computed
            update.status, update.num_computed_tokens = status, num_computed
            update.engine_status = request.engine_status
            if request_id in self._admitted:
                update.num_cached_tokens = request.num_cached_tokens
                update.num_external_tokens = request.num_external_tokens
                update.prefix_misses = prefix_misses.get(request_id)
            if group is None or update != SequenceUpdate(seq_id=update.seq_id):
                updates.append(update)
        return sorted(updates, key=lambda update: update.block_table != [])

    def _update(self, request_id: str) -> SequenceUpdate:
        update = self._updates.get(request_id)
        if update is None:
            request = self._requests[request_id]
            update = SequenceUpdate(seq_id=request.seq_id, new_token_ids=[], new_blocks=[])
            self._updates[request_id] = update
        return update

    def _add_executed(self) -> None:
        """Adds the requests that ran. Called first, while `is_prefill` is that of scheduling."""
        observation = self._observation
        sampled = set(self._output_ids)
        overlap = self._since - observation.start_time
        times = own_times(observation.scheduler_time, None, observation.execute_time, overlap)
        for request_id, num_tokens in self._num_scheduled_tokens.items():
            ended = self._ended_in_flight.get(request_id)
            request = ended or self._requests.get(request_id)
            if request is None:
                continue  # unknown since observations were lost
            if request.is_prefill:
                self.num_prefill_tokens += num_tokens
            else:
                self.num_decode_tokens += num_tokens
            group = SequenceGroupMetadataDelta(
                seq_data_delta={},
                request_id=request.name,
                block_tables={},
                is_prompt=request.is_prefill,
                do_sample=request_id in sampled,
                token_chunk_size=num_tokens,
                state=None,
            )
            if ended is not None:
                ended.num_computed_tokens -= num_tokens
            else:
                self._groups[request_id] = group
                self._update(request_id)
                charge_times(request.metrics, times)
            group.seq_data_delta[request.seq_id] = request.take_delta()
            self._batch.append(group)

    def _apply_preemptions(self, run: Scheduled) -> None:
        for observation in run.preempted:
            request = self._requests.get(observation.request_id)
            if request is None:
                continue
            request.status, request.engine_status = _WAITING, observation.status
            request.num_computed_tokens = 0
            request.is_prefill = True
            _replace(self._update(observation.request_id), ())
            cause = self._requests.get(observation.for_request_id or "")
            self.preemptions.append(
                Preemption(
                    request_id=request.name,
                    mode="recompute",
                    num_lost_tokens=observation.num_lost_tokens,
                    for_request_id=cause.name if cause else None,
                )
            )

    def _apply_swaps_out(self, run: Scheduled) -> None:
        for observation in run.swapped_out:
            request = self._requests.get(observation.request_id)
            if request is None:
                continue
            request.status, request.engine_status = _SWAPPED, ""
            request.num_computed_tokens = observation.num_computed_tokens
            _replace(self._update(observation.request_id), ())
            self._swapped_out += observation.blocks
            self.preemptions.append(
                Preemption(request_id=request.name, mode="swap", num_lost_tokens=0)
            )

    def _apply_swaps_in(self, run: Scheduled) -> None:
        for observation in run.swapped_in:
            request = self._requests.get(observation.request_id)
            if request is None:
                continue
            request.status, request.engine_status = _RUNNING, ""
            _replace(self._update(observation.request_id), observation.tables)
            self._swapped_in += observation.blocks

    def _apply_running_statuses(self) -> None:
        """Takes over the engine's own statuses of running requests. A batch ends such a status."""
        statuses = self._observation.running_statuses
        for request_id in self._running:
            request = self._requests.get(request_id)
            if request is None or request.status is not _RUNNING:
                continue
            status = statuses.get(request_id, "")
            if request.engine_status != status:
                request.engine_status = status
                self._update(request_id)

    def _apply_admissions(self, run: Scheduled) -> None:
        for observation in run.admitted:
            request = self._requests.get(observation.request_id)
            if request is None:
                continue
            request.status, request.engine_status = _RUNNING, ""
            request.is_prefill = True
            request.num_cached_tokens = observation.num_cached_tokens
            request.num_external_tokens = observation.num_external_tokens
            self._admitted.add(observation.request_id)
            if group := self._groups.get(observation.request_id):
                delta = group.seq_data_delta[request.seq_id]
                delta.new_num_computed_tokens = observation.num_cached_tokens
            _replace(self._update(observation.request_id), observation.tables)
            metrics = request.metrics
            if not request.was_scheduled:
                request.was_scheduled = True
                fork_time = observation.fork_time
                start_time = run.start_time if fork_time is None else fork_time
                metrics.first_scheduled_time = start_time
                metrics.time_in_queue = start_time - metrics.arrival_time
                self.metrics[request.name] = metrics

    def _apply_new_blocks(self, run: Scheduled) -> None:
        for request_id, tables in run.appended:
            if request_id in self._requests and tables:
                update = self._update(request_id)
                grows = update.new_blocks if update.block_table is None else update.block_table
                grows += tables[0]

    def _apply_outputs(self) -> None:
        observation = self._observation
        for request_id, token_ids in zip(
            self._output_ids, observation.output_token_ids, strict=True
        ):
            request = self._requests.get(request_id)
            if request is None:
                continue
            update = self._update(request_id)
            update.new_token_ids = token_ids
            if self._detokenizer is not None:
                update.text_delta = self._detokenizer.decode_output(
                    request.seq_id, token_ids, skip_special_tokens=request.skip_special_tokens
                )
            is_first = not request.num_output_tokens
            request.num_output_tokens += len(token_ids)
            request.token_ids += token_ids
            request.add_text(update.text_delta or "")
            if request.status is _RUNNING:  # else a late output of one that was preempted
                request.is_prefill = False
            metrics = request.metrics
            metrics.last_token_time = observation.time
            if is_first and metrics.first_token_time is None:
                metrics.first_token_time = observation.time
                self.metrics[request.name] = metrics
            if num_drafted := observation.num_draft_tokens.get(request_id):
                update.num_draft_tokens = num_drafted
                update.num_accepted_tokens = max(len(token_ids) - 1, 0)

    def _apply_computed_tokens(self) -> None:
        """Takes over computed tokens, which rejected drafts reduce."""
        observation = self._observation
        for request_id, computed in zip(
            self._running, observation.num_computed_tokens, strict=True
        ):
            request = self._requests.get(request_id)
            if request is None:
                continue
            computed = request.without_drafts(computed)
            if request.num_computed_tokens != computed:
                request.num_computed_tokens = computed
                self._update(request_id)

    def _apply_waiting(self, observation: WaitingRequest) -> None:
        request = self._requests.get(observation.request_id)
        if request is None:
            return
        request.status = _WAITING
        request.engine_status = engine_status(observation.status)
        request.num_computed_tokens = request.without_drafts(observation.num_computed_tokens)
        _replace(self._update(observation.request_id), observation.tables)

    def _end(self, observation: RequestEnded) -> None:
        request = self._requests.get(observation.request_id)
        if request is None:
            return
        stop_reason = request.end(observation)
        request.metrics.finished_time = self._observation.time
        if observation.tables is not None:  # else `RequestFinished` follows
            self.metrics[request.name] = request.metrics
        # Engines count scheduled tokens as computed, also those of a step without outputs.
        request.num_computed_tokens = request.without_drafts(observation.num_computed_tokens)
        update = self._update(observation.request_id)
        update.stop_reason = stop_reason
        _replace(update, observation.tables or ())


def _replace(update: SequenceUpdate, tables: Tables) -> None:
    """Replaces the tables of a sequence. The first group's table is `block_table`."""
    update.new_blocks = []
    update.block_table = list(tables[0]) if tables else []
    if len(tables) != 1:
        update.group_block_tables = [list(table) for table in tables[1:]]
