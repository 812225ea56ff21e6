"""A worker without a model, which returns recorded tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count

import msgspec

from engine_stub.core.beam_search import is_beam_search
from engine_stub.worker.model_output import ModelOutput
from seqtop.history.step_time import Size
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ExecuteModelRequest,
    Logprob,
    PoolerOutput,
    PoolingParams,
    PoolingSequenceGroupOutput,
    SamplingParams,
    SequenceGroupMetadata,
    SequenceGroupMetadataLike,
    SequenceOutput,
)
from seqtop.whatif.workload import Answer

_NO_TOKEN = 0
"""The token after the end of an output, which the engine discards."""

_WORST = -1e9
"""A log probability with which no beam continues."""


class _Sequence(msgspec.Struct):
    """A sequence as far as it was sent; no answer depends on its prompt."""

    output: list[int]
    num_computed: int
    num_cached: int
    cumulative_logprob: float


class _Group(msgspec.Struct):
    """A group that was sent."""

    request_id: str
    sampling_params: SamplingParams | None
    pooling_params: PoolingParams | None
    is_beam_search: bool
    sequences: dict[int, _Sequence] = {}
    is_prompt: bool = False
    do_sample: bool = False
    chunk: int = 1
    num_steps: int = 1


class RecordedWorker:
    """Answers with recorded tokens, each by the output that it follows.

    Args:
        answers: The tokens by request id.
        ran: Called with the size of each step; returns its duration in seconds.
        is_speculative: Drafts are verified, where they are recorded.

    Attributes:
        exhausted: Requests of the last step of which no further token is recorded.
    """

    def __init__(
        self,
        answers: Mapping[str, Answer],
        ran: Callable[[Size], float],
        *,
        is_speculative: bool = False,
    ) -> None:
        self.exhausted: list[str] = []
        self._is_speculative = is_speculative
        self._answers = answers
        self._ran = ran
        self._groups: dict[str, _Group] = {}

    def determine_num_available_blocks(self) -> int:
        """Raises ValueError: there is no device; the size of the pool has to be set."""
        raise ValueError("num_gpu_blocks must be set where no model runs")

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Does nothing: there are no keys and values."""

    def close(self) -> None:
        """Does nothing."""

    def execute_model(self, execute_model_req: ExecuteModelRequest) -> ModelOutput:
        """Returns the tokens of the groups of a step that are due."""
        self.exhausted = []
        for request_id in execute_model_req.finished_requests_ids:
            self._groups.pop(request_id, None)
        groups = [self._received(sent) for sent in execute_model_req.seq_group_metadata_list]
        num_drafted = [self._num_drafted(group) for group in groups]
        outputs = [
            CompletionSequenceGroupOutput(self._samples(group, drafted), None)
            for group, drafted in zip(groups, num_drafted, strict=True)
        ]
        pooler_output = None
        if any(group.pooling_params is not None for group in groups):
            # No recording has the vector of a pooled prompt: it is empty here.
            vectors = (() if group.do_sample else None for group in groups)
            pooler_output = PoolerOutput([*map(PoolingSequenceGroupOutput, vectors)])
        seconds = self._ran(_size(groups, num_drafted))
        has_drafts = self._is_speculative and bool(groups)
        return ModelOutput(outputs, seconds, pooler_output, num_drafted if has_drafts else None)

    def _received(self, sent: SequenceGroupMetadataLike) -> _Group:
        """Returns a group with what was sent of it: all, or what has changed."""
        if isinstance(sent, SequenceGroupMetadata):
            params = sent.sampling_params
            group = _Group(sent.request_id, params, sent.pooling_params, is_beam_search(params))
            group.sequences = {
                seq_id: _Sequence(
                    [*data.output_token_ids_array],
                    data.get_num_computed_tokens(),
                    data.get_num_cached_tokens(),
                    data.cumulative_logprob,
                )
                for seq_id, data in sent.seq_data.items()
            }
            self._groups[sent.request_id] = group
        else:
            group = self._groups[sent.request_id]
            for seq_id, delta in sent.seq_data_delta.items():
                own = group.sequences[seq_id]
                own.output += delta.new_output_token_ids
                own.num_computed = delta.new_num_computed_tokens
                own.cumulative_logprob = delta.new_cumulative_logprob
        assert sent.state is not None
        group.is_prompt, group.do_sample = sent.is_prompt, sent.do_sample
        group.chunk, group.num_steps = sent.token_chunk_size or 1, sent.state.num_steps
        return group

    def _num_drafted(self, group: _Group) -> int:
        """Returns the number of draft tokens that the step verifies."""
        if not self._is_speculative or not group.do_sample or len(group.sequences) != 1:
            return 0
        (own,) = group.sequences.values()
        draft = self._answers[group.request_id].drafts.get(len(own.output))
        return min(draft.num_tokens, group.num_steps - 1) if draft else 0

    def _samples(self, group: _Group, num_drafted: int) -> list[SequenceOutput]:
        if not group.do_sample or group.pooling_params is not None:
            return []
        if group.is_beam_search:
            samples = self._continuations(group)
        else:
            samples = self._next_tokens(group, num_drafted)
        if not samples:
            self.exhausted.append(group.request_id)
        return samples

    def _next_tokens(self, group: _Group, num_drafted: int) -> list[SequenceOutput]:
        """Returns a token, and those of an accepted draft or of further iterations."""
        answer = self._answers[group.request_id]
        ((seq_id, own),) = group.sequences.items()
        first = len(own.output)
        most = group.num_steps
        if self._is_speculative:
            draft = answer.drafts.get(first)
            most = 1 + (min(draft.num_accepted, num_drafted) if draft else 0)
        token_ids, logprobs, candidates = answer.token_ids, answer.logprobs, answer.candidates
        samples = [
            SequenceOutput(
                seq_id,
                token_id := token_ids[index],
                (_copied(candidates[index]) if index in candidates else None)
                or {token_id: Logprob(logprobs[index])},
            )
            for index in range(first, min(first + most, len(token_ids)))
        ]
        if samples and self._is_speculative:  # a draft may be accepted beyond the end
            beyond = SequenceOutput(seq_id, _NO_TOKEN, {_NO_TOKEN: Logprob(0.0)})
            samples += [beyond] * (most - len(samples))
        return samples

    def _continuations(self, group: _Group) -> list[SequenceOutput]:
        """Returns the continuations of beams, likeliest first."""
        answer = self._answers[group.request_id]
        beams = {
            tuple(own.output): (seq_id, own.cumulative_logprob)
            for seq_id, own in group.sequences.items()
        }
        length = len(next(iter(beams)))
        samples: list[tuple[float, SequenceOutput]] = []
        for parent, token_id, logprob in answer.beams.get(length, ()):
            if parent in beams:
                seq_id, cumulative = beams[parent]
                candidates = {token_id: Logprob(logprob)}
                samples.append((cumulative + logprob, SequenceOutput(seq_id, token_id, candidates)))
        if not samples and answer.is_whole:
            # No continuation was good enough: the search ended with outputs that had ended before.
            params = group.sampling_params
            assert params is not None
            token_id = next(own for own in count() if own not in params.all_stop_token_ids)
            candidates = {token_id: Logprob(_WORST)}
            return [SequenceOutput(seq_id, token_id, candidates) for seq_id, _ in beams.values()]
        samples.sort(key=lambda ranked: -ranked[0])
        return [sample for _, sample in samples]


def _copied(candidates: dict[int, Logprob]) -> dict[int, Logprob]:
    """Returns a copy, to which the engine adds the texts of the tokens."""
    return {token_id: Logprob(own.logprob, own.rank) for token_id, own in candidates.items()}


def _size(groups: list[_Group], num_drafted: list[int]) -> Size:
    """Returns the numbers of tokens that a step computes."""
    num_prefill = num_decode = 0
    for group, drafted in zip(groups, num_drafted, strict=True):
        for own in group.sequences.values():
            start = own.num_computed
            num_tokens = start + group.chunk - max(start, own.num_cached)
            if group.is_prompt:
                num_prefill += num_tokens
            else:
                num_decode += num_tokens + drafted
    return Size(num_prefill, num_decode)
