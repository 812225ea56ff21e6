"""What a sampled token does to its sequence: it is appended, read as text, and may be the last."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine_stub.core.beam_search import BeamSearch, BlockAllocator, asks_for_beams
from engine_stub.core.groups import unfinished
from engine_stub.processing.detokenizer import Detokenizer
from engine_stub.step_record import DecodeRecord, SequenceRecord
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


class OutputProcessor:
    """Takes samples in, and sets the status of sequences that end with them.

    Args:
        detokenizer: For requests that want text.
        max_model_len: The most tokens a sequence may have, prompt included.
        blocks: Shares and frees the blocks of beams.
        seq_ids: Ids for forks.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        max_model_len: int,
        blocks: BlockAllocator,
        seq_ids: Iterator[int],
    ) -> None:
        self.detokenizer = detokenizer
        self.max_model_len = max_model_len
        self._beam_search = BeamSearch(blocks, seq_ids, self._append, max_model_len)

    def process(
        self,
        seq_group: SequenceGroup,
        samples: list[SequenceOutput],
        num_draft_tokens: int | None = None,
    ) -> list[SequenceRecord]:
        """Append a step's samples to the sequences that they continue.

        There may be none of a sequence, or several in order; those after its end are discarded.

        Args:
            num_draft_tokens: How many drafted tokens were verified, of which all samples but the
                last are what stands; None without speculation.
        """
        if asks_for_beams(seq_group.sampling_params):
            return self._beam_search.process(seq_group, samples)
        updates = [
            self._append(
                seq_group, seq, [each for each in samples if each.parent_seq_id == seq.seq_id]
            )
            for seq in unfinished(seq_group)
        ]
        if num_draft_tokens is not None:
            counts = seq_group.metrics.spec_token_acceptance_counts
            assert counts is not None
            for place in range(len(samples)):
                counts[place] += 1
        if num_draft_tokens:
            (update,) = updates
            num_accepted = min(len(samples) - 1, len(update.new_token_ids))
            updates = [
                msgspec.structs.replace(
                    update, num_draft_tokens=num_draft_tokens, num_accepted_tokens=num_accepted
                )
            ]
        return updates

    def decode(
        self, seq_group: SequenceGroup, sample: SequenceOutput, decodes: DecodeRecord
    ) -> SequenceRecord | None:
        """Append the only sample of a group's only sequence, which goes to the columns.

        If the sequence ends with it, there is more to say: then an update is returned.

        Args:
            seq_group: One that `is_plain`.
        """
        params, seq = seq_group.sampling_params, seq_group.first_seq
        assert params is not None
        self._take(seq, sample, params)
        token_id = sample.output_token
        text_delta = seq.get_output_text_to_return(params.output_text_buffer_length, delta=True)
        request_id = seq_group.request_id
        if seq.is_finished():
            return SequenceRecord(request_id, seq, [token_id], [sample.logprobs], text_delta)
        decodes.seqs.append(seq)
        decodes.request_ids.append(request_id)
        decodes.seq_ids.append(seq.seq_id)
        decodes.new_token_ids.append(token_id)
        decodes.new_logprobs.append(sample.logprobs[token_id].logprob)
        decodes.text_deltas.append(text_delta)
        return None

    def process_pooled(
        self, seq_group: SequenceGroup, output: PoolingSequenceGroupOutput
    ) -> list[SequenceRecord]:
        """Take in what has been pooled of a prompt; once there is something, the group is done."""
        seq = seq_group.first_seq
        if output.data is not None:
            seq_group.pooled_data = output.data
            seq.status = SequenceStatus.FINISHED_STOPPED
        return [SequenceRecord(seq_group.request_id, seq, [], [], text_delta="")]

    def process_prompt_logprobs(
        self, seq_group: SequenceGroup, prompt_logprobs: PromptLogprobs, num_computed_before: int
    ) -> None:
        """Keep the log probabilities of prompt tokens that a chunk has told.

        Args:
            prompt_logprobs: Of the tokens after the chunk's first one, and of the one after it.
            num_computed_before: Tokens that were computed before the chunk.
        """
        for candidates in prompt_logprobs:
            self._name_tokens(candidates or {})
        known = seq_group.prompt_logprobs or [None]
        # After a preemption, some or all are computed once more.
        seq_group.prompt_logprobs = [
            *known[: num_computed_before + 1],
            *prompt_logprobs,
            *known[num_computed_before + 1 + len(prompt_logprobs) :],
        ]

    def _append(
        self, seq_group: SequenceGroup, seq: Sequence, samples: list[SequenceOutput]
    ) -> SequenceRecord:
        params = seq_group.sampling_params
        assert params is not None
        kept: list[SequenceOutput] = []
        for sample in samples:
            if kept:  # the token before this one has been computed, or this one would not be here
                seq.data.update_num_computed_tokens(1)
            kept.append(sample)
            self._take(seq, sample, params)
            if seq.is_finished():
                break
        return SequenceRecord(
            request_id=seq_group.request_id,
            seq=seq,
            new_token_ids=[sample.output_token for sample in kept],
            new_logprobs=[sample.logprobs for sample in kept],
            text_delta=seq.get_output_text_to_return(params.output_text_buffer_length, delta=True),
        )

    def _take(self, seq: Sequence, sample: SequenceOutput, params: SamplingParams) -> None:
        self._name_tokens(sample.logprobs)
        seq.append_token_id(sample.output_token, sample.logprobs)
        self._advance(seq, sample.output_token, params)

    def _name_tokens(self, logprobs: dict[int, Logprob]) -> None:
        for token_id, logprob in logprobs.items():
            logprob.decoded_token = self.detokenizer.token_text(token_id)

    def _advance(self, seq: Sequence, token_id: int, params: SamplingParams) -> None:
        """Read the newest token, and see whether it ends the sequence."""
        num_output = seq.get_output_len()
        may_stop = num_output >= params.min_tokens
        ended = may_stop and _stop_at_token(seq, token_id, params)
        if params.detokenize and (not ended or params.include_stop_str_in_output):
            num_before = len(seq.output_text)
            self.detokenizer.append(seq, skip_special_tokens=params.skip_special_tokens)
            if params.stop and may_stop and not ended:
                ended = _stop_at_string(seq, params, num_before)
        if not ended:
            if num_output != params.max_tokens and seq.get_len() < self.max_model_len:
                return
            seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED
        if params.detokenize and not isinstance(seq.stop_reason, str):
            self.detokenizer.finish(seq, skip_special_tokens=params.skip_special_tokens)


def is_plain(params: SamplingParams | None) -> bool:
    """Whether all there is to say of such a request's decodes is one token, and its text."""
    return params is not None and params.logprobs is None and not asks_for_beams(params)


def _stop_at_token(seq: Sequence, token_id: int, params: SamplingParams) -> bool:
    """Finish a sequence whose newest token is an end-of-sequence or stop token."""
    if token_id == seq.eos_token_id and not params.ignore_eos:
        seq.status = SequenceStatus.FINISHED_STOPPED
        return True
    if token_id in (params.stop_token_ids or ()):
        seq.status = SequenceStatus.FINISHED_STOPPED
        seq.stop_reason = token_id
        return True
    return False


def _stop_at_string(seq: Sequence, params: SamplingParams, num_before: int) -> bool:
    """Finish a sequence whose text holds a stop string now, and cut the text there.

    Of several, the one that begins first counts.

    Args:
        num_before: Characters of the text that were searched before.
    """
    found = []
    for stop in params.stop or ():
        at = seq.output_text.find(stop, max(num_before - len(stop) + 1, 0))
        if at >= 0:
            found.append((at, stop))
    if not found:
        return False
    at, stop = min(found)
    end = at + len(stop) if params.include_stop_str_in_output else at
    seq.output_text = seq.output_text[:end]
    seq.status = SequenceStatus.FINISHED_STOPPED
    seq.stop_reason = stop
    return True
