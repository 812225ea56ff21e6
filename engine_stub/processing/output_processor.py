"""Processes the outputs of a step: appends tokens, decodes text, and finds the ends of outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from engine_stub.core.beam_search import BeamSearch, is_beam_search
from engine_stub.core.scheduler import Scheduler, SchedulerOutputs
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.failure_log import log_failure
from engine_stub.processing.detokenizer import Detokenizer
from engine_stub.step_record import PlainDecodes, ScheduledSequenceGroup, SequenceRecord
from engine_stub.worker.model_output import ModelOutput
from seqtop.sequence import (
    Logprob,
    PoolingSequenceGroupOutput,
    PromptLogprobs,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceOutput,
    SequenceStatus,
)

# A global name: looking up a member of an enum class takes longer than the comparison.
_RUNNING = SequenceStatus.RUNNING


class ModelRunnerError(Exception):
    """The model runner could not sample for a request, or pool it."""


class ProcessedOutputs(msgspec.Struct):
    """The processed outputs of a step; all fields but the last are fields of `StepRecord`.

    Attributes:
        num_unused_slots: Tokens that were scheduled for drafts, but not proposed.
    """

    decodes: PlainDecodes = msgspec.field(default_factory=PlainDecodes)
    others: list[SequenceRecord] = []
    other_positions: list[int] = []
    other_groups: list[int] = []
    finished: list[SequenceGroup] = []
    errors: dict[str, str] = {}
    num_unused_slots: int = 0


class OutputProcessor:
    """Appends samples to sequences, and sets the status of sequences that end with them.

    Args:
        detokenizer: The detokenizer for requests that ask for text.
        max_model_len: The most tokens of a sequence, prompt included.
        scheduler: The scheduler of the groups; finished ones are removed from it.
        seq_ids: Ids for forked sequences.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        max_model_len: int,
        scheduler: Scheduler,
        seq_ids: Iterator[int],
    ) -> None:
        self.detokenizer = detokenizer
        self.max_model_len = max_model_len
        self._scheduler = scheduler
        self._block_manager = scheduler.block_manager
        self._has_lookahead = scheduler.has_lookahead
        self._beam_search = BeamSearch(scheduler, seq_ids, self._append, max_model_len)

    def process(self, outputs: SchedulerOutputs, model_output: ModelOutput) -> ProcessedOutputs:
        """Advances the scheduled groups by the tokens computed and sampled for them.

        An exception that a group causes ends this group only.
        """
        processed = ProcessedOutputs()
        decodes, num_draft_tokens = processed.decodes, model_output.num_draft_tokens
        for index, scheduled in enumerate(outputs.scheduled):
            seq_group = scheduled.seq_group
            try:
                if model_output.errors:
                    _check_model_output(model_output, index)
                updates = self._decode(scheduled, model_output.outputs[index].samples, decodes)
                if updates is None:
                    updates = self._advance(scheduled, model_output, index)
                elif not updates:
                    continue  # a plain decode, as most of most steps
            except Exception as error:  # noqa: BLE001 - logged, and reported to the client
                log_failure("request %s failed", seq_group.request_id)
                processed.errors[seq_group.request_id] = f"{type(error).__name__}: {error}"
                updates = _fail(seq_group)
            first = len(decodes.seq_ids) + len(processed.others)
            processed.other_positions += range(first, first + len(updates))
            processed.other_groups.append(index)
            processed.others += updates
            if seq_group.is_finished():
                self._scheduler.finish_seq_group(seq_group)
                processed.finished.append(seq_group)
        if num_draft_tokens is not None:
            num_slots = sum(group.num_lookahead_slots for group in outputs.scheduled)
            processed.num_unused_slots = num_slots - sum(num_draft_tokens)
        return processed

    def _decode(
        self,
        scheduled: ScheduledSequenceGroup,
        samples: list[SequenceOutput],
        decodes: PlainDecodes,
    ) -> list[SequenceRecord] | None:
        """Advances a group that can be a plain decode, and adds it to them.

        Returns:
            Nothing for a plain decode, and the record of a sequence that ends with its token. None
            if the group cannot be one.
        """
        seq_group = scheduled.seq_group
        params = seq_group.sampling_params
        if (
            scheduled.is_prompt
            or not seq_group.is_single_seq
            or self._has_lookahead
            or len(samples) != 1
            or params is None
            or params.logprobs is not None
            or params.extra_args  # of a beam search
        ):
            return None
        seq = seq_group.first_seq
        seq.data.update_num_computed_tokens(1)
        self._block_manager.cache_blocks(seq)
        (sample,) = samples
        self._append_sample(seq, sample, params)
        text = seq.get_output_text_to_return(params.output_text_buffer_length, True)
        token_id, logprobs = sample.output_token, sample.logprobs
        if seq.status is not _RUNNING:
            return [SequenceRecord(seq_group.request_id, seq, [token_id], [logprobs], text)]
        decodes.append(seq_group, seq.seq_id, token_id, logprobs[token_id].logprob, text)
        return []

    def _advance(
        self, scheduled: ScheduledSequenceGroup, model_output: ModelOutput, index: int
    ) -> list[SequenceRecord]:
        """Advances the group at `index` of the batch, of any kind."""
        seq_group, result = scheduled.seq_group, model_output.outputs[index]
        num_computed_before = seq_group.first_seq.get_num_computed_tokens()
        seq_group.update_num_computed_tokens(scheduled.token_chunk_size)
        for seq in unfinished_seqs(seq_group):
            self._block_manager.cache_blocks(seq)
        if result.prompt_logprobs is not None:
            self._add_prompt_logprobs(seq_group, result.prompt_logprobs, num_computed_before)
        if seq_group.pooling_params is not None:
            assert model_output.pooler_output is not None
            return self._process_pooled(seq_group, model_output.pooler_output[index])
        if is_beam_search(seq_group.sampling_params):
            return self._beam_search.process(seq_group, result.samples)
        # A sequence may have no samples, or several in order.
        samples_of: defaultdict[int, list[SequenceOutput]] = defaultdict(list)
        for sample in result.samples:
            samples_of[sample.parent_seq_id].append(sample)
        updates = [
            self._append(seq_group, seq, samples_of[seq.seq_id])
            for seq in unfinished_seqs(seq_group)
        ]
        if model_output.num_draft_tokens is not None:
            updates = _with_draft(
                seq_group, updates, model_output.num_draft_tokens[index], len(result.samples)
            )
        if scheduled.num_lookahead_slots:
            self._block_manager.cache_blocks(seq_group.first_seq)
        return updates

    def _process_pooled(
        self, seq_group: SequenceGroup, output: PoolingSequenceGroupOutput
    ) -> list[SequenceRecord]:
        """Stores the vector of a prompt, if it is complete; that ends the group."""
        seq = seq_group.first_seq
        if output.data is not None:
            seq_group.pooled_data = output.data
            seq.status = SequenceStatus.FINISHED_STOPPED
        return [SequenceRecord(seq_group.request_id, seq, [], [], text_delta="")]

    def _add_prompt_logprobs(
        self, seq_group: SequenceGroup, prompt_logprobs: PromptLogprobs, num_computed_before: int
    ) -> None:
        """Stores the log probabilities of the prompt tokens that a chunk predicted.

        Args:
            prompt_logprobs: The candidates for each token from the chunk's second one up to the
                first one after it.
            num_computed_before: Tokens that were computed before the chunk.
        """
        for candidates in prompt_logprobs:
            for token_id, candidate in (candidates or {}).items():
                candidate.decoded_token = self.detokenizer.token_text(token_id)
        stored = seq_group.prompt_logprobs or [None]
        # After a preemption, some or all of them are computed again.
        seq_group.prompt_logprobs = [
            *stored[: num_computed_before + 1],
            *prompt_logprobs,
            *stored[num_computed_before + 1 + len(prompt_logprobs) :],
        ]

    def _append(
        self, seq_group: SequenceGroup, seq: Sequence, samples: list[SequenceOutput]
    ) -> SequenceRecord:
        """Appends samples to the sequence that they continue; those after its end are discarded."""
        params = seq_group.sampling_params
        assert params is not None
        token_ids: list[int] = []
        logprobs: list[dict[int, Logprob]] = []
        for sample in samples:
            token_ids.append(sample.output_token)
            logprobs.append(sample.logprobs)
            self._append_sample(seq, sample, params)
            if seq.is_finished():
                break
        if len(token_ids) > 1:
            # A further sample means that the one before it has been computed.
            seq.data.update_num_computed_tokens(len(token_ids) - 1)
        text = seq.get_output_text_to_return(params.output_text_buffer_length, True)
        return SequenceRecord(seq_group.request_id, seq, token_ids, logprobs, text)

    def _append_sample(self, seq: Sequence, sample: SequenceOutput, params: SamplingParams) -> None:
        """Appends and decodes a token, and sets the status if it ends the sequence."""
        token_id, candidates = sample.output_token, sample.logprobs
        for candidate_id, candidate in candidates.items():
            candidate.decoded_token = self.detokenizer.token_text(candidate_id)
        seq.append_token_id(token_id, candidates)
        num_output = seq.data.get_output_len()
        may_stop = num_output >= params.min_tokens
        ended = (
            may_stop
            and (token_id == seq.eos_token_id or token_id in (params.stop_token_ids or ()))
            and _stop_at_token(seq, token_id, params)
        )
        if params.detokenize and (not ended or params.include_stop_str_in_output):
            num_before = len(seq.output_text)
            self.detokenizer.append(seq, skip_special_tokens=params.skip_special_tokens)
            if params.stop and may_stop and not ended:
                ended = _stop_at_string(seq, params, num_before)
        if not ended:
            if num_output != params.max_tokens and seq.data.get_len() < self.max_model_len:
                return
            seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
        if params.detokenize and not isinstance(seq.stop_reason, str):
            self.detokenizer.finish(seq, skip_special_tokens=params.skip_special_tokens)


def drop_withheld_text(seq: Sequence) -> None:
    """Cuts the text of a sequence that is aborted after what its deltas contain.

    The rest was withheld because it could have been the start of a stop string. No delta follows an
    abort, so that no client gets it.
    """
    withheld = seq.get_output_text_to_return(0, delta=True)
    seq.output_text = seq.output_text.removesuffix(withheld)


def _check_model_output(model_output: ModelOutput, index: int) -> None:
    """Raises `ModelRunnerError` if the model runner failed on the group at `index`."""
    if index in model_output.errors:
        raise ModelRunnerError(model_output.errors[index])


def _with_draft(
    seq_group: SequenceGroup,
    updates: list[SequenceRecord],
    num_draft_tokens: int,
    num_samples: int,
) -> list[SequenceRecord]:
    """Counts the accepted tokens of a draft, and returns the updates with the draft.

    All samples but the last are accepted tokens.
    """
    counts = seq_group.metrics.spec_token_acceptance_counts
    assert counts is not None
    for position in range(num_samples):
        counts[position] += 1
    if not num_draft_tokens:
        return updates
    (update,) = updates
    return [
        msgspec.structs.replace(
            update,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=min(num_samples - 1, len(update.new_token_ids)),
        )
    ]


def _fail(seq_group: SequenceGroup) -> list[SequenceRecord]:
    """Aborts a group that cannot be processed."""
    failed = unfinished_seqs(seq_group)
    if seq_group.first_seq not in failed:  # it ended in this step, before the error
        failed = [seq_group.first_seq, *failed]
    for seq in failed:
        drop_withheld_text(seq)
        seq.status = SequenceStatus.FINISHED_ABORTED
    return [SequenceRecord(seq_group.request_id, seq, [], [], text_delta="") for seq in failed]


def _stop_at_token(seq: Sequence, token_id: int, params: SamplingParams) -> bool:
    """Finishes a sequence whose newest token is an end-of-sequence or stop token."""
    if token_id == seq.eos_token_id and not params.ignore_eos:
        seq.status = SequenceStatus.FINISHED_STOPPED
        return True
    if token_id in (params.stop_token_ids or ()):
        seq.status = SequenceStatus.FINISHED_STOPPED
        seq.stop_reason = token_id
        return True
    return False


def _stop_at_string(seq: Sequence, params: SamplingParams, num_before: int) -> bool:
    """Finishes a sequence whose text contains a stop string, and cuts the text there.

    Of several stop strings, the one that begins first counts.

    Args:
        num_before: Characters of the text that were already searched.
    """
    matches = []
    for stop in params.stop or ():
        at = seq.output_text.find(stop, max(num_before - len(stop) + 1, 0))
        if at >= 0:
            matches.append((at, stop))
    if not matches:
        return False
    at, stop = min(matches)
    end = at + len(stop) if params.include_stop_str_in_output else at
    seq.output_text = seq.output_text[:end]
    seq.status = SequenceStatus.FINISHED_STOPPED
    seq.stop_reason = stop
    return True
