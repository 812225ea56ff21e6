"""An engine without a model, in which many sequences decode, and a device that waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.recorded_worker import RecordedWorker
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ExecuteModelRequest,
    Logprob,
    SamplingParams,
    SequenceGroupMetadata,
    SequenceOutput,
)

_VOCAB = 1_000
_PROMPT_LENGTH = 40


class WaitingWorker(RecordedWorker):
    """A worker that waits instead of computing, and samples any tokens.

    Attributes:
        seconds: The time of a step, in which the interpreter is free for other threads.
    """

    def __init__(self) -> None:
        super().__init__({}, lambda _: 0.0)
        self.seconds = 0.0
        self._seq_ids: dict[str, int] = {}
        self._num_steps = 0

    def execute_model(self, execute_model_req: ExecuteModelRequest) -> ModelOutput:
        """Returns a token for each group that is due."""
        for request_id in execute_model_req.finished_requests_ids:
            self._seq_ids.pop(request_id, None)
        outputs: list[CompletionSequenceGroupOutput] = []
        self._num_steps += 1
        for number, group in enumerate(execute_model_req.seq_group_metadata_list):
            if isinstance(group, SequenceGroupMetadata):
                (self._seq_ids[group.request_id],) = group.seq_data
            samples: list[SequenceOutput] = []
            if group.do_sample:
                token_id = 2 + (31 * self._num_steps + number) % (_VOCAB - 2)
                logprobs = {token_id: Logprob(-0.5)}
                samples = [SequenceOutput(self._seq_ids[group.request_id], token_id, logprobs)]
            outputs.append(CompletionSequenceGroupOutput(samples, None))
        if self.seconds:
            time.sleep(self.seconds)
        return ModelOutput(outputs, self.seconds)


@contextmanager
def decoding_engine(size: int, num_outputs: int) -> Iterator[tuple[LLMEngine, WaitingWorker]]:
    """Yields an engine in which `size` sequences decode `num_outputs` more tokens."""
    worker = WaitingWorker()
    length = _PROMPT_LENGTH + num_outputs + 8
    config = EngineConfig(
        device="cpu",
        dtype="float32",
        max_num_seqs=size,
        max_num_batched_tokens=size * _PROMPT_LENGTH,
        max_model_len=min(length, 512),
        num_gpu_blocks=size * (length // 16 + 2) + 8,
    )
    engine = LLMEngine(config, worker=worker)
    params = SamplingParams(temperature=0.0, max_tokens=num_outputs + 4, ignore_eos=True)
    for number in range(size):
        prompt = [2 + (7 * number + index) % (_VOCAB - 2) for index in range(_PROMPT_LENGTH)]
        engine.add_request(f"request-{number}", prompt, params)
    while not all(group.first_seq.get_output_len() for group in engine.seq_groups.values()):
        engine.step()
    yield engine, worker
    engine.close()
