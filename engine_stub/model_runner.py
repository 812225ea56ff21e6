"""From the metadata of a step's groups to the tokens sampled for them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from engine_stub.attention import PagedKVCache
from engine_stub.batch import Batch, Row, prepare_batch
from engine_stub.beam_search import asks_for_beams, beam_search_params, num_candidates
from engine_stub.cuda import ForwardTimer
from engine_stub.model import Decoder
from engine_stub.pooler import Pooler
from engine_stub.sampler import (
    Sampler,
    SamplingRequest,
    likeliest_continuations,
    prompt_logprobs,
)
from engine_stub.stages import Neighbours
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    IntermediateTensors,
    PoolerOutput,
    PoolingSequenceGroupOutput,
    PromptLogprobs,
    SamplingParams,
    SequenceGroupMetadata,
    SequenceOutput,
)


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a step gave.

    Attributes:
        outputs: One per group, in the order of the request; without samples where a group did
            not sample, with several of a sequence, in order, where it got ahead.
        model_forward_time: Seconds the forward pass took.
        pooler_output: One entry per group, with data for those whose prompts are done and pooled;
            None if no group pools.
    """

    outputs: list[CompletionSequenceGroupOutput]
    model_forward_time: float
    pooler_output: PoolerOutput | None = None


class ModelRunner:
    """Runs a decoder over batches whose keys and values live in a paged pool.

    Args:
        model: On the device and in the dtype to run with.
        cache: The pool.
        seed: For requests without a seed of their own.
        pooler: For requests with pooling parameters.
        neighbours: The stages before and after, where the model is one of several.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        seed: int,
        pooler: Pooler,
        neighbours: Neighbours | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.neighbours = neighbours
        self.pooler = pooler
        self.device = cache.pool.device
        self.sampler = Sampler(torch.Generator(self.device).manual_seed(seed))
        self._timer = ForwardTimer(self.device)
        self._generators: dict[str, torch.Generator] = {}

    def agree(self, numbers: list[int]) -> list[int]:
        """What the last stage says, in all stages; of what others say, only the length counts."""
        return numbers if self.neighbours is None else self.neighbours.agree(numbers)

    def forget(self, request_id: str) -> None:
        """Drop what is kept between steps for a request, if anything."""
        self._generators.pop(request_id, None)
        self.pooler.forget(request_id)

    @torch.inference_mode()
    def execute_model(self, groups: list[SequenceGroupMetadata]) -> ModelOutput:
        """Compute each group's chunk, and in the last stage sample for those that are due."""
        outputs = [CompletionSequenceGroupOutput([], None) for _ in groups]
        if not groups:
            return ModelOutput(outputs, 0.0)
        batch = prepare_batch(groups, self.cache)
        stage, received = self.model.stage, None
        if self.neighbours is not None and not stage.is_first:
            received = self.neighbours.receive(len(batch.input_ids))
        self._timer.start()
        hidden = self.model(batch.input_ids, batch.positions, batch.attend, received)
        self._timer.stop()
        if self.neighbours is not None and not stage.is_last:
            self.neighbours.send(IntermediateTensors({"hidden_states": hidden}))
            return ModelOutput(outputs, self._timer.seconds())
        if batch.sampling_rows:
            logits = self.model.compute_logits(hidden[batch.sample_indices])
            self._sample(logits, batch.sampling_rows, outputs)
        for index, row in batch.prompt_logprobs_rows:
            outputs[row.group_index].prompt_logprobs = self._prompt_logprobs(hidden, index, row)
        pooler_output = self._pool(hidden, batch, len(groups))
        return ModelOutput(outputs, self._timer.seconds(), pooler_output)

    def _pool(self, hidden: Tensor, batch: Batch, num_groups: int) -> PoolerOutput | None:
        if not batch.pooling_rows:
            return None
        pooled = PoolerOutput([PoolingSequenceGroupOutput(None) for _ in range(num_groups)])
        for index, row in batch.pooling_rows:
            chunk = hidden[index : index + row.end - row.start]
            pooled[row.group_index].data = self.pooler.pool(chunk, row)
        return pooled

    def _sample(
        self, logits: Tensor, rows: list[Row], outputs: list[CompletionSequenceGroupOutput]
    ) -> None:
        """Sample a token for each row, or several for all beams of a group together."""
        beams: defaultdict[int, list[int]] = defaultdict(list)
        singles: list[int] = []
        for index, row in enumerate(rows):
            is_beam = asks_for_beams(row.group.sampling_params)
            (beams[row.group_index] if is_beam else singles).append(index)
        if singles:
            requests = [self._sampling_request(rows[index]) for index in singles]
            chosen = logits if len(singles) == len(rows) else logits[singles]
            for index, sample in zip(singles, self.sampler(chosen, requests), strict=True):
                row = rows[index]
                outputs[row.group_index].samples.append(
                    SequenceOutput(row.seq_id, sample.token_id, sample.logprobs)
                )
        for group_index, indices in beams.items():
            samples = _continue_beams(logits[indices], [rows[index] for index in indices])
            outputs[group_index].samples += samples

    def _prompt_logprobs(self, hidden: Tensor, index: int, row: Row) -> PromptLogprobs:
        """What each token of a row says of the next one, as long as that is the prompt's."""
        params = row.group.sampling_params
        assert params is not None
        token_ids = row.data.prompt_token_ids[row.start + 1 : row.end + 1]
        logits = self.model.compute_logits(hidden[index : index + len(token_ids)])
        given = torch.tensor(token_ids, device=self.device)
        return list(prompt_logprobs(logits, given, params.prompt_logprobs or 0))

    def _sampling_request(self, row: Row) -> SamplingRequest:
        params = row.group.sampling_params
        assert params is not None
        return SamplingRequest(params, row.data, self._generator(row.group.request_id, params))

    def _generator(self, request_id: str, params: SamplingParams) -> torch.Generator | None:
        """The request's random numbers; they go on where they were after a preemption."""
        if params.seed is None:
            return None
        if request_id not in self._generators:
            self._generators[request_id] = torch.Generator(self.device).manual_seed(params.seed)
        return self._generators[request_id]


def _continue_beams(logits: Tensor, rows: list[Row]) -> list[SequenceOutput]:
    """The likeliest continuations of a group's beams, of which ``logits [beams, vocab]`` are."""
    params = rows[0].group.sampling_params
    beam = beam_search_params(params)
    assert params is not None
    assert beam is not None
    continuations = likeliest_continuations(
        logits,
        [row.data.cumulative_logprob for row in rows],
        num_candidates(params, beam.beam_width),
        temperature=beam.temperature,
    )
    return [
        SequenceOutput(rows[index].seq_id, sample.token_id, sample.logprobs)
        for index, sample in continuations
    ]
