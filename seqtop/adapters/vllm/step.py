"""One step's notes put together: what changed about each sequence, and for whom it was the first.

With async scheduling the next step has been scheduled by the time the outputs of this one come.
What ran is then this step's; tables, computed tokens and statuses are those of the moment, as the
scheduler itself has them.
"""

from __future__ import annotations

from typing import Final

from seqtop.adapters.vllm.notes import RequestEnded, Scheduled, Stepped, Tables
from seqtop.adapters.vllm.request import Request, end_status, engine_status
from seqtop.adapters.vllm.text import Texts
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.wire.messages import Decodes, Preemption, SequenceUpdate

_WAITING: Final = SequenceStatus.WAITING
_RUNNING: Final = SequenceStatus.RUNNING


class StepBuilder:
    """Applies a step's notes to `requests` (by internal id) and gathers what viewers must hear."""

    def __init__(
        self,
        note: Stepped,
        running: list[str],
        requests: dict[str, Request],
        texts: Texts | None,
    ) -> None:
        self._note = note
        self._running = running
        ran = list(note.num_scheduled_tokens)
        self._output_ids = ran if note.output_ids is None else note.output_ids
        self._requests = requests
        self._texts = texts
        self._updates: dict[str, SequenceUpdate] = {}
        self._batch: dict[str, SequenceGroupMetadataDelta] = {}
        self._decoding: dict[str, tuple[int, int]] = {}
        """Who ran with one token and was decoding before, with computed and cached tokens then."""
        self.decodes = Decodes(seq_ids=[], new_token_ids=[], text_deltas=[])
        self.metrics: dict[str, RequestMetrics] = {}
        """Of requests that were scheduled, or sampled, for the first time."""
        self.preemptions: list[Preemption] = []
        self.num_prefill_tokens = self.num_decode_tokens = 0
        self.num_queries = self.num_hits = 0
        """Tokens looked up in the prefix cache on admission, and found."""
        self._executed()
        for run in note.scheduled:
            self._preempted(run)
            self._admitted(run)
            self._grown(run)
        self._sampled()
        self._settled()
        self._held()
        for ended in note.ended:
            self._end(ended)
        for request_id, before in self._decoding.items():
            self._put_in_columns(request_id, *before)

    def execute(self) -> ExecuteModelRequest:
        """Who ran, without those in `decodes`."""
        return ExecuteModelRequest(list(self._batch.values()))

    def updates(self) -> list[SequenceUpdate]:
        """The state of every sequence that changed, after the step; who gave blocks up is first."""
        for request_id, update in self._updates.items():
            request = self._requests[request_id]
            update.status = request.status
            update.engine_status = request.engine_status
            update.num_computed_tokens = request.num_computed_tokens
            update.num_cached_tokens = request.num_cached_tokens
        return sorted(self._updates.values(), key=lambda update: update.block_table != [])

    def _update(self, request_id: str) -> SequenceUpdate:
        update = self._updates.get(request_id)
        if update is None:
            request = self._requests[request_id]
            update = SequenceUpdate(
                seq_id=request.seq_id,
                status=request.status,
                num_computed_tokens=0,
                new_token_ids=[],
                new_blocks=[],
            )
            self._updates[request_id] = update
        return update

    def _executed(self) -> None:
        """What ran; asked first, while `is_prefill` is what it was when it was scheduled."""
        note = self._note
        sampled = set(self._output_ids)
        for request_id, num_tokens in note.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue  # it ended while the step was under way
            self._update(request_id)
            if request.is_prefill:
                self.num_prefill_tokens += num_tokens
            else:
                self.num_decode_tokens += num_tokens
            metrics = request.metrics
            metrics.scheduler_time = (metrics.scheduler_time or 0.0) + note.scheduler_time
            metrics.model_execute_time = (metrics.model_execute_time or 0.0) + note.execute_time
            self._batch[request_id] = SequenceGroupMetadataDelta(
                seq_data_delta={},
                request_id=request.name,
                block_tables={},
                is_prompt=request.is_prefill,
                do_sample=request_id in sampled,
                token_chunk_size=num_tokens,
            )
            if num_tokens == 1 and not request.is_prefill and request.status is _RUNNING:
                before = request.num_computed_tokens, request.num_cached_tokens
                self._decoding[request_id] = before

    def _preempted(self, run: Scheduled) -> None:
        for note in run.preempted:
            request = self._requests.get(note.request_id)
            if request is None:
                continue
            request.status, request.engine_status = _WAITING, "PREEMPTED"
            request.num_computed_tokens = 0
            request.is_prefill = True
            _replace(self._update(note.request_id), ())
            cause = self._requests.get(note.for_request_id or "")
            self.preemptions.append(
                Preemption(
                    request_id=request.name,
                    mode="recompute",
                    num_lost_tokens=note.num_lost_tokens,
                    for_request_id=cause.name if cause else None,
                )
            )

    def _admitted(self, run: Scheduled) -> None:
        for note in run.admitted:
            request = self._requests.get(note.request_id)
            if request is None:
                continue
            request.status, request.engine_status = _RUNNING, ""
            request.is_prefill = True
            request.num_cached_tokens = note.num_cached_tokens
            self.num_queries += request.num_prompt_tokens + request.num_output_tokens
            self.num_hits += note.num_cached_tokens
            _replace(self._update(note.request_id), note.tables)
            metrics = request.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = run.start_time
                metrics.time_in_queue = run.start_time - metrics.arrival_time
                self.metrics[request.name] = metrics

    def _grown(self, run: Scheduled) -> None:
        for request_id, tables in run.appended:
            if request_id in self._requests and tables:
                update = self._update(request_id)
                grows = update.new_blocks if update.block_table is None else update.block_table
                grows += tables[0]
        for request_id, tables in run.replaced:
            if request_id in self._requests:
                _replace(self._update(request_id), tables)

    def _sampled(self) -> None:
        note = self._note
        for request_id, token_ids in zip(self._output_ids, note.output_token_ids, strict=True):
            request = self._requests.get(request_id)
            if request is None:
                continue
            update = self._update(request_id)
            update.new_token_ids = token_ids
            if self._texts is not None:
                update.text_delta = self._texts.grow(
                    request.seq_id, token_ids, skip_special_tokens=request.skip_special_tokens
                )
            request.num_output_tokens += len(token_ids)
            if request.status is _RUNNING:  # else a late output of one that was preempted
                request.is_prefill = False
            metrics = request.metrics
            metrics.last_token_time = note.time
            if metrics.first_token_time is None:
                metrics.first_token_time = note.time
                self.metrics[request.name] = metrics
            if num_drafted := note.num_draft_tokens.get(request_id):
                update.num_draft_tokens = num_drafted
                update.num_accepted_tokens = len(token_ids) - 1

    def _settled(self) -> None:
        """Take over what only the scheduler knows: rejected drafts take computed tokens back."""
        note = self._note
        for request_id, computed in zip(self._running, note.num_computed_tokens, strict=True):
            request = self._requests.get(request_id)
            if request is not None and request.num_computed_tokens != computed:
                request.num_computed_tokens = computed
                self._update(request_id)

    def _held(self) -> None:
        for request_id, status in self._note.held.items():
            request = self._requests.get(request_id)
            if request is None or request.engine_status == engine_status(status):
                continue
            if status == "WAITING" or request.status is _WAITING:
                request.engine_status = engine_status(status)
            else:  # a streaming session that waits for more input
                request.status, request.engine_status = _WAITING, engine_status(status)
            self._update(request_id)

    def _end(self, note: RequestEnded) -> None:
        request = self._requests.get(note.request_id)
        if request is None:
            return
        request.status = end_status(note.status)
        request.engine_status = engine_status(note.status)
        # vLLM counts what is under way as computed. What was when it ended never came back.
        num_tokens = request.num_prompt_tokens + request.num_output_tokens
        request.num_computed_tokens = min(note.num_computed_tokens, num_tokens)
        update = self._update(note.request_id)
        update.stop_reason = note.stop_reason
        _replace(update, ())

    def _put_in_columns(self, request_id: str, num_computed: int, num_cached: int) -> None:
        """Take a sequence out of the rows, if there is no more to say of it than its next token."""
        request, update, columns = (
            self._requests[request_id],
            self._updates[request_id],
            self.decodes,
        )
        now = request.status, request.engine_status, request.num_cached_tokens
        if (
            now != (_RUNNING, "", num_cached)
            or request.num_computed_tokens != num_computed + 1
            or len(update.new_token_ids) != 1
            or len(update.new_blocks) > 1
            or update.block_table is not None
            or update.num_draft_tokens is not None
        ):
            return
        columns.seq_ids.append(request.seq_id)
        columns.new_token_ids += update.new_token_ids
        columns.text_deltas.append(update.text_delta)
        if update.new_blocks:
            (columns.new_blocks[request.seq_id],) = update.new_blocks
        del self._updates[request_id], self._batch[request_id]


def _replace(update: SequenceUpdate, tables: Tables) -> None:
    """The first group's table is the sequence's own; with one group there are no others to say."""
    update.new_blocks = []
    update.block_table = list(tables[0]) if tables else []
    if len(tables) != 1:
        update.group_block_tables = [list(table) for table in tables[1:]]
