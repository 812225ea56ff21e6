"""From the metadata of a step's groups to the tokens sampled for them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine_stub.core.beam_search import asks_for_beams, beam_search_params, num_candidates
from engine_stub.core.metadata import snapshot
from engine_stub.model_executor.attention import PagedKVCache
from engine_stub.model_executor.cpu.decode_cache import DecodeCache
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.pooler import Pooler
from engine_stub.model_executor.sampler import (
    Sampler,
    SamplerOutput,
    SamplingMetadata,
    likeliest_continuations,
    looks_at_output,
    prompt_logprobs,
)
from engine_stub.model_executor.stages import PipelineComm
from engine_stub.platforms.cuda import ForwardTimer, to_device
from engine_stub.platforms.cuda_graphs import DecodeGraphs
from engine_stub.spec_decode.rejection_sampler import RejectionSampler
from engine_stub.spec_decode.speculation import NO_DRAFT, Draft, SpeculationOutcome, Speculator
from engine_stub.worker.batch_row import BatchRow
from engine_stub.worker.decode_fast_path import DecodeRun
from engine_stub.worker.input_batch import InputBatch, prepare_batch
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

# A row of the vocabulary for each token of a large step would be more than all that it else takes.
_PROMPT_LOGPROBS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a step gave.

    Attributes:
        outputs: One per group, in the order of the request; without samples where a group did
            not sample, with several of a sequence, in order, where it got ahead.
        model_forward_time: Seconds the forward pass took.
        pooler_output: One entry per group, with data for those whose prompts are done and pooled;
            None if no group pools.
        num_draft_tokens: For each group, how many tokens of a draft were verified; None without
            speculation.
    """

    outputs: list[CompletionSequenceGroupOutput]
    model_forward_time: float
    pooler_output: PoolerOutput | None = None
    num_draft_tokens: list[int] | None = None


class ModelRunner:
    """Runs a decoder over batches whose keys and values live in a paged pool.

    Args:
        model: On the device and in the dtype to run with.
        cache: The pool.
        seed: For requests without a seed of their own.
        pooler: For requests with pooling parameters.
        neighbours: The stages before and after, where the model is one of several.
        speculator: Has drafts, if decodes are speculative.
        graphs: For steps that only decode.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        seed: int,
        pooler: Pooler,
        neighbours: PipelineComm | None = None,
        speculator: Speculator | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.neighbours = neighbours
        self.pooler = pooler
        self.device = cache.pool.device
        self.decode_cache = DecodeCache(cache) if self.device.type == "cpu" else None
        self.sampler = Sampler(torch.Generator(self.device).manual_seed(seed))
        self._timer = ForwardTimer(self.device)
        self.rejection_sampler = RejectionSampler(self.sampler)
        self.speculator = speculator
        self.graphs = graphs
        self._run: DecodeRun | None = None
        self._generators: dict[str, torch.Generator] = {}
        self._known_rows: list[BatchRow] = []
        self._known_requests: list[SamplingMetadata] = []
        """What the step's rows sample by, if they all sample one token each, of one sequence."""

    def agree(self, numbers: list[int]) -> list[int]:
        """What the last stage says, in all stages; of what others say, only the length counts."""
        return numbers if self.neighbours is None else self.neighbours.agree(numbers)

    def forget(self, request_id: str) -> None:
        """Drop what is kept between steps for a request, if anything."""
        self._generators.pop(request_id, None)
        self.pooler.forget(request_id)

    def write_back(self) -> None:
        """Have the pool hold all that was computed; to be done before its blocks are copied."""
        if self.decode_cache is not None:
            self.decode_cache.write_back()

    @torch.inference_mode()
    def execute_model(self, groups: list[SequenceGroupMetadata]) -> ModelOutput:
        """Compute each group's chunk, and in the last stage sample for those that are due."""
        outputs = [CompletionSequenceGroupOutput([], None) for _ in groups]
        if not groups:
            return ModelOutput(outputs, 0.0)
        drafts = self.speculator.propose(groups, self._generator_of) if self.speculator else {}
        batch = self._batch(groups, drafts)
        stage, received = self.model.stage, None
        if self.neighbours is not None and not stage.is_first:
            received = self.neighbours.receive(len(batch.input_ids))
        self._timer.start()
        hidden = self._forward(batch, received)
        self._timer.stop()
        if self.neighbours is not None and not stage.is_last:
            self.neighbours.send(IntermediateTensors({"hidden_states": hidden}))
            return ModelOutput(outputs, self._timer.seconds())
        if batch.sampling_rows:
            # Indices are distinct: if there are so many, they are all, and in order.
            all_sample = len(batch.sample_indices) == len(hidden)
            sampled = hidden if all_sample else hidden[batch.sample_indices]
            logits = self.model.compute_logits(sampled)
            self._sample(logits, batch.sampling_rows, outputs)
        for index, row in batch.prompt_logprobs_rows:
            outputs[row.group_index].prompt_logprobs = self._prompt_logprobs(hidden, index, row)
        num_draft_tokens = None
        if self.speculator:
            self.speculator.observe(_outcomes(batch, hidden, outputs))
            guesses = (drafts.get(group.get_first_seq_id(), NO_DRAFT) for group in groups)
            num_draft_tokens = [len(draft.token_ids) for draft in guesses]
        pooler_output = self._pool(hidden, batch, len(groups))
        return ModelOutput(outputs, self._timer.seconds(), pooler_output, num_draft_tokens)

    def _forward(self, batch: InputBatch, received: IntermediateTensors | None) -> Tensor:
        if batch.graph is not None:
            return batch.graph.run(len(batch.input_ids), received)
        hidden: Tensor = self.model(batch.input_ids, batch.positions, batch.attend, received)
        return hidden

    def _batch(self, groups: list[SequenceGroupMetadata], drafts: dict[int, Draft]) -> InputBatch:
        """A step's inputs: those of the step before, taken on if that is enough."""
        batch = self._run.next(groups) if self._run and not drafts else None
        if batch is None:
            batch = prepare_batch(groups, self.cache, drafts, self.decode_cache, self.graphs)
            self._run = DecodeRun.begin(groups, batch, self.decode_cache)
        return batch

    def _pool(self, hidden: Tensor, batch: InputBatch, num_groups: int) -> PoolerOutput | None:
        if not batch.pooling_rows:
            return None
        pooled = PoolerOutput([PoolingSequenceGroupOutput(None) for _ in range(num_groups)])
        for index, row in batch.pooling_rows:
            chunk = hidden[index : index + row.end - row.start]
            pooled[row.group_index].data = self.pooler.pool(chunk, row)
        return pooled

    def _sample(
        self, logits: Tensor, rows: list[BatchRow], outputs: list[CompletionSequenceGroupOutput]
    ) -> None:
        """Sample a token for each row, some more with a draft, or all beams of a group together."""
        if rows is self._known_rows:
            self._sample_singles(logits, rows, self._known_requests, outputs)
            return
        beams: defaultdict[int, dict[int, BatchRow]] = defaultdict(dict)
        singles: dict[int, BatchRow] = {}
        drafted: dict[int, BatchRow] = {}
        first = 0  # of the row's logits
        for row in rows:
            if asks_for_beams(row.group.sampling_params):
                beams[row.group_index][first] = row
            else:
                (singles if row.draft is NO_DRAFT else drafted)[first] = row
            first += 1 + len(row.draft.token_ids)
        if singles:
            requests = [self._sampling_request(row) for row in singles.values()]
            if len(singles) == len(rows):
                self._known_rows, self._known_requests = rows, requests
            chosen = logits if len(singles) == len(rows) else self._rows_of(logits, [*singles])
            self._sample_singles(chosen, [*singles.values()], requests, outputs)
        if drafted:
            indices = [
                first + place
                for first, row in drafted.items()
                for place in range(1 + len(row.draft.token_ids))
            ]
            requests = [each for row in drafted.values() for each in self._requests_along(row)]
            guesses = [row.draft for row in drafted.values()]
            found = self.rejection_sampler(self._rows_of(logits, indices), requests, guesses)
            for row, samples in zip(drafted.values(), found, strict=True):
                outputs[row.group_index].samples = _as_outputs(row, samples)
        for group_index, own in beams.items():
            chosen = self._rows_of(logits, [*own])
            outputs[group_index].samples += _continue_beams(chosen, [*own.values()])

    def _rows_of(self, logits: Tensor, rows: list[int]) -> Tensor:
        return logits.index_select(0, to_device(rows, self.device))

    def _sample_singles(
        self,
        logits: Tensor,
        rows: list[BatchRow],
        requests: list[SamplingMetadata],
        outputs: list[CompletionSequenceGroupOutput],
    ) -> None:
        for row, sample in zip(rows, self.sampler(logits, requests), strict=True):
            output = SequenceOutput(row.seq_id, sample.token_id, sample.logprobs)
            outputs[row.group_index].samples = [output]

    def _prompt_logprobs(self, hidden: Tensor, index: int, row: BatchRow) -> PromptLogprobs:
        """What each token of a row says of the next one, as long as that is the prompt's."""
        params = row.group.sampling_params
        assert params is not None
        token_ids = row.data.prompt_token_ids[row.start + 1 : row.end + 1]
        states = hidden[index : index + len(token_ids)]
        found: PromptLogprobs = []
        for start in range(0, len(token_ids), _PROMPT_LOGPROBS_AT_ONCE):
            piece = slice(start, start + _PROMPT_LOGPROBS_AT_ONCE)
            logits = self.model.compute_logits(states[piece])
            given = to_device(token_ids[piece], self.device)
            found += prompt_logprobs(logits, given, params.prompt_logprobs or 0)
        return found

    def _sampling_request(self, row: BatchRow) -> SamplingMetadata:
        params = row.group.sampling_params
        assert params is not None
        return SamplingMetadata(params, row.data, self._generator(row.group.request_id, params))

    def _requests_along(self, row: BatchRow) -> list[SamplingMetadata]:
        """What to sample for after a row's last token, and after each token of its draft."""
        request = self._sampling_request(row)
        requests = [request]
        for token_id in row.draft.token_ids:
            if looks_at_output(request.params):
                data = snapshot(requests[-1].data)
                data.append_token_id(token_id, 0.0)
                request = replace(request, data=data)
            requests.append(request)
        return requests

    def _generator_of(self, group: SequenceGroupMetadata) -> torch.Generator:
        params = group.sampling_params
        assert params is not None
        return self._generator(group.request_id, params) or self.sampler.generator

    def _generator(self, request_id: str, params: SamplingParams) -> torch.Generator | None:
        """The request's random numbers; they go on where they were after a preemption."""
        if params.seed is None:
            return None
        if request_id not in self._generators:
            self._generators[request_id] = torch.Generator(self.device).manual_seed(params.seed)
        return self._generators[request_id]


def _as_outputs(row: BatchRow, samples: list[SamplerOutput]) -> list[SequenceOutput]:
    return [SequenceOutput(row.seq_id, each.token_id, each.logprobs) for each in samples]


def _outcomes(
    batch: InputBatch, hidden: Tensor, outputs: list[CompletionSequenceGroupOutput]
) -> list[SpeculationOutcome]:
    """What became of the sequences that sampled, but for beams."""
    outcomes: list[SpeculationOutcome] = []
    first = 0
    for row in batch.sampling_rows:
        last = first + 1 + len(row.draft.token_ids)
        if not asks_for_beams(row.group.sampling_params):
            states = hidden[batch.sample_indices[first:last]]
            num_accepted = len(outputs[row.group_index].samples) - 1
            outcomes.append(SpeculationOutcome(row.group, states, num_accepted))
        first = last
    return outcomes


def _continue_beams(logits: Tensor, rows: list[BatchRow]) -> list[SequenceOutput]:
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
