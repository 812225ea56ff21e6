"""Runs the model over a step's groups, and samples for those that are due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from engine_stub.core.beam_search import beam_search_params, is_beam_search, num_candidates
from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.pooler import Pooler
from engine_stub.model_executor.sampler import (
    RowSampling,
    SampledToken,
    Sampler,
    depends_on_output,
    likeliest_continuations,
    prompt_logprobs,
)
from engine_stub.model_executor.stages import PipelineComm
from engine_stub.platforms import platform_of, to_device
from engine_stub.spec_decode.rejection_sampler import RejectionSampler
from engine_stub.spec_decode.speculation import NO_DRAFT, SpeculationOutcome, Speculator
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.input_batch import InputBatch, prepare_batch
from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.step_graphs import StepGraphs
from engine_stub.worker.step_inputs import BatchRow
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

# Rows of logits computed at once for prompt log probabilities. A row of the vocabulary for each
# token of a large step would take more memory than the rest of the step.
_PROMPT_LOGPROBS_AT_ONCE = 64


class ModelRunner:
    """Runs a decoder over batches whose keys and values are in a paged pool.

    Args:
        model: The decoder, on the device and in the dtype to run with.
        cache: The pool.
        block_tables: The tables of the sequences of a step, on the device.
        seed: The seed of random numbers for requests without a seed of their own.
        pooler: The pooler for requests with pooling parameters.
        pipeline_comm: Communication with the other stages; None if there is one stage.
        speculator: The source of drafts; None without speculation.
        graphs: The graphs to run steps with; None to run all steps without graphs.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        block_tables: DeviceBlockTables,
        seed: int,
        pooler: Pooler,
        pipeline_comm: PipelineComm | None = None,
        speculator: Speculator | None = None,
        graphs: StepGraphs | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.block_tables = block_tables
        self.pipeline_comm = pipeline_comm
        self.pooler = pooler
        self.device = cache.pool.device
        self.sampler = Sampler(torch.Generator(self.device).manual_seed(seed))
        self._platform = platform_of(self.device)
        self.rejection_sampler = RejectionSampler(self.sampler)
        self.speculator = speculator
        self.graphs = graphs
        self._generators: dict[str, torch.Generator] = {}

    def broadcast_from_last(self, numbers: list[int]) -> list[int]:
        """Returns the last stage's numbers; see `PipelineComm.broadcast_from_last`."""
        if self.pipeline_comm is None:
            return numbers
        return self.pipeline_comm.broadcast_from_last(numbers)

    def remove_request(self, request_id: str) -> None:
        """Drops the state of a request, if there is any."""
        self._generators.pop(request_id, None)
        self.pooler.remove_request(request_id)

    @torch.inference_mode()
    def execute_model(self, groups: list[SequenceGroupMetadata]) -> ModelOutput:
        """Computes each group's chunk; the last stage samples for the groups that are due."""
        outputs = [CompletionSequenceGroupOutput([], None) for _ in groups]
        errors: dict[int, str] = {}
        if not groups:
            return ModelOutput(outputs, 0.0)
        drafts = self.speculator.propose(groups, self._generator_of) if self.speculator else {}
        batch = prepare_batch(groups, self.cache, self.block_tables, drafts, self.graphs)
        stage, received = self.model.stage, None
        if self.pipeline_comm is not None and not stage.is_first:
            received = self.pipeline_comm.receive(len(batch.input_ids))
        start = self._platform.mark()
        hidden = self._forward(batch, received)
        stop = self._platform.mark()
        if self.pipeline_comm is not None and not stage.is_last:
            self.pipeline_comm.send(IntermediateTensors({"hidden_states": hidden}))
            return ModelOutput(outputs, self._platform.seconds_between(start, stop))
        if batch.sampling_rows:
            # The indices are distinct: as many as there are tokens means all, in order.
            all_sample = len(batch.sample_indices) == len(hidden)
            sampled = hidden if all_sample else hidden[batch.sample_indices]
            logits = self.model.compute_logits(sampled)
            for rows in _alike(batch.sampling_rows):
                self._sample(logits, rows, outputs, errors)
        for index, row in batch.prompt_logprobs_rows:
            with _collect_error(errors, row.group_index):
                outputs[row.group_index].prompt_logprobs = self._prompt_logprobs(hidden, index, row)
        num_draft_tokens = None
        if self.speculator:
            self.speculator.observe(_outcomes(batch, hidden, outputs, errors))
            own_drafts = (drafts.get(group.get_first_seq_id(), NO_DRAFT) for group in groups)
            num_draft_tokens = [len(draft.token_ids) for draft in own_drafts]
        pooler_output = self._pool(hidden, batch, len(groups), errors)
        seconds = self._platform.seconds_between(start, stop)
        return ModelOutput(outputs, seconds, pooler_output, num_draft_tokens, errors)

    def _forward(self, batch: InputBatch, received: IntermediateTensors | None) -> Tensor:
        if batch.graph is not None:
            return batch.graph.run(len(batch.input_ids), received)
        hidden: Tensor = self.model(batch.input_ids, batch.positions, batch.attend, received)
        return hidden

    def _pool(
        self, hidden: Tensor, batch: InputBatch, num_groups: int, errors: dict[int, str]
    ) -> PoolerOutput | None:
        if not batch.pooling_rows:
            return None
        pooled = PoolerOutput([PoolingSequenceGroupOutput(None) for _ in range(num_groups)])
        for index, row in batch.pooling_rows:
            chunk = hidden[index : index + row.end - row.start]
            with _collect_error(errors, row.group_index):
                pooled[row.group_index].data = self.pooler.pool(chunk, row.group, row.start)
        return pooled

    def _sample(
        self,
        logits: Tensor,
        rows: dict[int, BatchRow],
        outputs: list[CompletionSequenceGroupOutput],
        errors: dict[int, str],
    ) -> None:
        """Adds the samples of `rows`, given by their first rows of logits, to `outputs`.

        After an error it samples group by group, so that those that are not at fault go on, and
        adds an entry to `errors` for each group that is.
        """
        try:
            samples = self._samples(logits, rows)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - reported to the client
            by_group: defaultdict[int, dict[int, BatchRow]] = defaultdict(dict)
            for first, row in rows.items():
                by_group[row.group_index][first] = row
            if len(by_group) == 1:
                errors[next(iter(by_group))] = _describe(error)
            else:
                for own in by_group.values():
                    self._sample(logits, own, outputs, errors)
            return
        for row, sample in samples:
            output = SequenceOutput(row.seq_id, sample.token_id, sample.logprobs)
            outputs[row.group_index].samples.append(output)

    def _samples(
        self, logits: Tensor, rows: dict[int, BatchRow]
    ) -> list[tuple[BatchRow, SampledToken]]:
        """Samples for rows of one kind; see `_alike`."""
        first_row = next(iter(rows.values()))
        if is_beam_search(first_row.group.sampling_params):
            return _continue_beams(self._rows_of(logits, [*rows]), [*rows.values()])
        if first_row.draft is NO_DRAFT:
            chosen = logits if len(rows) == len(logits) else self._rows_of(logits, [*rows])
            sampled = self.sampler(chosen, [self._row_sampling(row) for row in rows.values()])
            return list(zip(rows.values(), sampled, strict=True))
        indices = [
            first + offset
            for first, row in rows.items()
            for offset in range(1 + len(row.draft.token_ids))
        ]
        requests = [
            sampling for row in rows.values() for sampling in self._sampling_along_draft(row)
        ]
        drafts = [row.draft for row in rows.values()]
        accepted = self.rejection_sampler(self._rows_of(logits, indices), requests, drafts)
        return [
            (row, sample)
            for row, samples in zip(rows.values(), accepted, strict=True)
            for sample in samples
        ]

    def _rows_of(self, logits: Tensor, rows: list[int]) -> Tensor:
        return logits.index_select(0, to_device(rows, self.device))

    def _prompt_logprobs(self, hidden: Tensor, index: int, row: BatchRow) -> PromptLogprobs:
        """Returns the log probabilities of the prompt tokens that follow the tokens of a row."""
        params = row.group.sampling_params
        assert params is not None
        token_ids = row.data.prompt_token_ids[row.start + 1 : row.end + 1]
        states = hidden[index : index + len(token_ids)]
        logprobs: PromptLogprobs = []
        for start in range(0, len(token_ids), _PROMPT_LOGPROBS_AT_ONCE):
            piece = slice(start, start + _PROMPT_LOGPROBS_AT_ONCE)
            logits = self.model.compute_logits(states[piece])
            given = to_device(token_ids[piece], self.device)
            logprobs += prompt_logprobs(logits, given, params.prompt_logprobs or 0)
        return logprobs

    def _row_sampling(self, row: BatchRow) -> RowSampling:
        params = row.group.sampling_params
        assert params is not None
        return RowSampling(params, row.data, self._generator(row.group.request_id, params))

    def _sampling_along_draft(self, row: BatchRow) -> list[RowSampling]:
        """Returns the metadata after a row's last token, and after each token of its draft."""
        request = self._row_sampling(row)
        requests = [request]
        for token_id in row.draft.token_ids:
            if depends_on_output(request.params):
                data = requests[-1].data.snapshot()
                data.append_token_id(token_id, 0.0)
                request = replace(request, data=data)
            requests.append(request)
        return requests

    def _generator_of(self, group: SequenceGroupMetadata) -> torch.Generator:
        params = group.sampling_params
        assert params is not None
        return self._generator(group.request_id, params) or self.sampler.generator

    def _generator(self, request_id: str, params: SamplingParams) -> torch.Generator | None:
        """Returns the request's own generator, which survives preemptions; None without a seed."""
        if params.seed is None:
            return None
        if request_id not in self._generators:
            self._generators[request_id] = torch.Generator(self.device).manual_seed(params.seed)
        return self._generators[request_id]


@contextmanager
def _collect_error(errors: dict[int, str], group_index: int) -> Iterator[None]:
    """Turns an exception into an entry of `errors`; the other groups of the step go on."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - reported to the client
        errors[group_index] = _describe(error)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _alike(rows: list[BatchRow]) -> list[dict[int, BatchRow]]:
    """Divides rows, by their first rows of logits, into those that are sampled for together.

    These are the plain ones, those with drafts, and the beams of each search.
    """
    singles: dict[int, BatchRow] = {}
    drafted: dict[int, BatchRow] = {}
    beams: defaultdict[int, dict[int, BatchRow]] = defaultdict(dict)
    first = 0
    for row in rows:
        if is_beam_search(row.group.sampling_params):
            beams[row.group_index][first] = row
        else:
            (singles if row.draft is NO_DRAFT else drafted)[first] = row
        first += 1 + len(row.draft.token_ids)
    return [own for own in (singles, drafted, *beams.values()) if own]


def _outcomes(
    batch: InputBatch,
    hidden: Tensor,
    outputs: list[CompletionSequenceGroupOutput],
    errors: dict[int, str],
) -> list[SpeculationOutcome]:
    """Returns the outcome of each sequence that sampled, beams excepted."""
    outcomes: list[SpeculationOutcome] = []
    first = 0
    for row in batch.sampling_rows:
        last = first + 1 + len(row.draft.token_ids)
        if not (is_beam_search(row.group.sampling_params) or row.group_index in errors):
            states = hidden[batch.sample_indices[first:last]]
            num_accepted = len(outputs[row.group_index].samples) - 1
            outcomes.append(SpeculationOutcome(row.group, states, num_accepted))
        first = last
    return outcomes


def _continue_beams(logits: Tensor, rows: list[BatchRow]) -> list[tuple[BatchRow, SampledToken]]:
    """Returns the likeliest continuations of a group's beams, from ``logits [beams, vocab]``."""
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
    return [(rows[index], sample) for index, sample in continuations]
