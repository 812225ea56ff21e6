"""What a sampled token does to its sequence: it is appended, read as text, and may be the last."""

from __future__ import annotations

from engine_stub.detokenizer import Detokenizer
from engine_stub.step_record import SequenceUpdate
from seqtop.sequence import SamplingParams, Sequence, SequenceGroup, SequenceOutput, SequenceStatus


class OutputProcessor:
    """Takes samples in, and sets the status of sequences that end with them.

    Args:
        detokenizer: For requests that want text.
        max_model_len: The most tokens a sequence may have, prompt included.
    """

    def __init__(self, detokenizer: Detokenizer, max_model_len: int) -> None:
        self.detokenizer = detokenizer
        self.max_model_len = max_model_len

    def process(self, seq_group: SequenceGroup, samples: list[SequenceOutput]) -> SequenceUpdate:
        """Append a step's samples to the group's sequence; there may be none."""
        seq, params = seq_group.first_seq, seq_group.sampling_params
        assert params is not None
        for sample in samples:
            for token_id, logprob in sample.logprobs.items():
                logprob.decoded_token = self.detokenizer.token_text(token_id)
            seq.append_token_id(sample.output_token, sample.logprobs)
            self._advance(seq, params)
        return SequenceUpdate(
            request_id=seq_group.request_id,
            seq=seq,
            new_token_ids=[sample.output_token for sample in samples],
            new_logprobs=[sample.logprobs for sample in samples],
            text_delta=seq.get_output_text_to_return(params.output_text_buffer_length, delta=True),
        )

    def _advance(self, seq: Sequence, params: SamplingParams) -> None:
        """Read the newest token, and see whether it ends the sequence."""
        may_stop = seq.get_output_len() >= params.min_tokens
        ended = may_stop and _stop_at_token(seq, params)
        if params.detokenize and (not ended or params.include_stop_str_in_output):
            num_before = len(seq.output_text)
            self.detokenizer.append(seq, skip_special_tokens=params.skip_special_tokens)
            ended = ended or (may_stop and _stop_at_string(seq, params, num_before))
        if not ended:
            self._stop_at_length(seq, params)
        if params.detokenize and seq.is_finished() and not isinstance(seq.stop_reason, str):
            self.detokenizer.finish(seq, skip_special_tokens=params.skip_special_tokens)

    def _stop_at_length(self, seq: Sequence, params: SamplingParams) -> None:
        if seq.get_len() >= self.max_model_len or seq.get_output_len() == params.max_tokens:
            seq.status = SequenceStatus.FINISHED_LENGTH_CAPPED


def _stop_at_token(seq: Sequence, params: SamplingParams) -> bool:
    """Finish a sequence whose newest token is an end-of-sequence or stop token."""
    token_id = seq.get_last_token_id()
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
