"""Measures the engine's own Python in a step of decodes, and publishing on a fast device.

No model runs: the worker samples any token. The first part is the CPU time of scheduling, of
processing outputs and of the record. In the second part the worker waits without the interpreter's
lock, as long as a step takes on an H200 (docs/engine.md), and steps that are published take turns
with steps that are not. It waits as CUDA's runtime does while a process uses one device: without
giving the core to others (`cudaDeviceScheduleAuto`).
"""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from tempfile import TemporaryDirectory

from benchmarks import running
from benchmarks.figure import Figure, Findings, Limit, middle, percentile
from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from engine_stub.entrypoints.reporting import engine_info
from engine_stub.entrypoints.reports import Start
from engine_stub.step_timer import StepTimer
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

TITLE = "The bundled engine's own time in a step of decodes"
SIZES = (1, 32, 256, 1024)
NUM_STEPS = {1: 200, 32: 150, 256: 120, 1024: 50}
WAITS = {1: 0.0025, 32: 0.004, 256: 0.010, 1024: 0.020}
"""Seconds on the device: on an H200 for 1, 32 and 256 decodes, assumed for 1,024."""
PUBLISHING_LIMITS = {1: 60, 32: 70, 256: 250, 1024: 900}
"""Microseconds of the engine's thread for publishing a step."""
TURN = 10
"""Steps in a row that are published, or not."""

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
        until = time.perf_counter() + self.seconds
        while self.seconds and time.perf_counter() < until:
            # Some 20 µs of work without the interpreter's lock, and without memory.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 60)
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
        num_tokens = _PROMPT_LENGTH - number % 16  # not all fill a block in the same step
        prompt = [2 + (7 * number + index) % (_VOCAB - 2) for index in range(num_tokens)]
        engine.add_request(f"request-{number}", prompt, params)
    while not all(group.first_seq.get_output_len() for group in engine.seq_groups.values()):
        engine.step()
    yield engine, worker
    engine.close()


def measure(*, tiny: bool = False) -> Findings:
    figures: list[Figure] = []
    for size in SIZES[:1] if tiny else SIZES:
        num_steps = TURN if tiny else NUM_STEPS[size]
        parts = _own_times(size, num_steps)
        whole = [sum(step) for step in parts]
        schedule, process, record = (middle(part) * 1e6 for part in zip(*parts, strict=True))
        figures.append(
            Figure(
                what=f"{size} in decode, for each sequence",
                measured=f"CPU, median of {num_steps} steps",
                value=middle(whole) * 1e6 / size,
                unit="µs",
                limit=Limit(4.0) if size == 256 else None,
                note=f"Schedule {schedule:.0f}, process {process:.0f}, record {record:.0f} µs; 99th"
                f" percentile {percentile(whole, 99) / middle(whole):.2f} times the median.",
            )
        )
    for size in SIZES[:1] if tiny else SIZES:
        cpu, published, alone = _published_times(size, 1 if tiny else NUM_STEPS[size] // TURN)
        figures.append(
            Figure(
                what=f"publishing {size} in decode, {WAITS[size] * 1e3:g} ms on the device",
                measured=f"CPU of the engine's thread, median of {len(cpu)} steps",
                value=middle(cpu) * 1e6,
                unit="µs",
                limit=Limit(PUBLISHING_LIMITS[size]),
                peer="a step without publishing",
                peer_value=middle(alone) * 1e6,
                ratio=middle(published) / middle(alone),
                ratio_limit=Limit(1.02),
            )
        )
    return Findings(figures)


def _own_times(size: int, num_steps: int) -> list[tuple[float, float, float]]:
    """Returns CPU seconds of scheduling, processing and recording of steps."""
    now = time.thread_time
    times = []
    with decoding_engine(size, num_steps + TURN) as (engine, worker):
        gc.collect()
        gc.freeze()  # as the engine's command does
        for _ in range(num_steps):
            timer = StepTimer(engine.clock)
            began = now()
            scheduled = engine.scheduler.schedule()
            schedule = now() - began
            output = worker.execute_model(scheduled.execute_model_req)
            began = now()
            processed = engine.output_processor.process(scheduled, output)
            process = now() - began
            timer.mark_processed()
            began = now()
            engine._record(scheduled, processed, timer)
            times.append((schedule, process, now() - began))
        gc.unfreeze()
    return times


def _published_times(size: int, num_turns: int) -> tuple[list[float], list[float], list[float]]:
    """Returns CPU seconds of publishing, and seconds of steps with and without it."""
    cpu: list[float] = []
    steps: dict[bool, list[float]] = {True: [], False: []}
    with (
        decoding_engine(size, 2 * (num_turns + 1) * (TURN + 1)) as (engine, worker),
        TemporaryDirectory(prefix="sq") as directory,
        closing(PublisherLink()) as link,
    ):
        info = engine_info(engine, engine_id="benchmark", control=False)
        link.start(Start(info, f"ipc://{directory}/e", insecure=False, keys=None))
        for group in engine.seq_groups.values():
            link.arrived(group)
        worker.seconds = WAITS[size]
        gc.collect()
        gc.freeze()
        for turn in range(2 * num_turns):
            publishes = turn % 2 == 0
            if publishes:
                link.report_state(engine)  # of the steps that were not reported
            time.sleep(0.05)
            record = engine.step()
            if publishes:
                link.stepped(record)  # whose sequences are new
            for _ in range(TURN):
                began = time.perf_counter()
                record = engine.step()
                if publishes:
                    worked = time.thread_time()
                    link.stepped(record)
                    cpu.append(time.thread_time() - worked)
                    link.commands()
                steps[publishes].append(time.perf_counter() - began)
        gc.unfreeze()
        if link.num_dropped:
            raise RuntimeError(f"{link.num_dropped} reports were dropped")
    return cpu, steps[True], steps[False]


if __name__ == "__main__":
    running.alone(measure)
