"""Predictions beside real runs of the bundled engine, and the cost of many predictions.

python -m tests.release whatif random --runs 1000   # random runs repeated, decision by decision
python -m tests.release whatif pairs                # ten workloads, ten changes, arrivals by step
python -m tests.release whatif clock                # arrivals by time: errors beside the spread
python -m tests.release whatif large                # 10,000 requests, the proof and eight settings
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine_stub.config import DEFAULT_MODEL, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.worker.recorded_worker import RecordedWorker
from seqtop.diff.run import RunDecisions
from seqtop.history import FileStore, FileWriter
from seqtop.history.step_time import Size, StepTime, fit
from seqtop.sequence import SamplingParams
from seqtop.whatif.figures import RunFigures
from seqtop.whatif.replay import Clock, RecordingSink, ReplayOptions
from seqtop.whatif.workload import Answer, read_workload
from tests.support.checkpoints import make_checkpoint
from tests.support.random_runs import small_models
from tests.support.replaying import compared, record_random, replayed

BASE: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 48,
    "max_num_seqs": 12,
    "max_num_batched_tokens": 96,
    "max_model_len": 256,
}
CHANGES: dict[str, dict[str, Any]] = {
    "num_gpu_blocks -30%": {"num_gpu_blocks": 34},
    "num_gpu_blocks +30%": {"num_gpu_blocks": 62},
    "max_num_seqs halved": {"max_num_seqs": 6},
    "max_num_seqs doubled": {"max_num_seqs": 24},
    "max_num_batched_tokens / 3": {"max_num_batched_tokens": 32},
    "max_num_batched_tokens doubled": {"max_num_batched_tokens": 192},
    "swapping": {"preemption_mode": "swap", "num_cpu_blocks": 40},
    "no prefix cache": {"enable_prefix_caching": False},
    "preemption of the largest": {"preemption_victim": "largest"},
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
}
STEP_TIME = StepTime(per_step=1e-3, per_prefill_token=1e-5, per_decode_token=1e-4)
"""Any times, as decisions by step do not depend on them."""


class Request(NamedTuple):
    """A request of a workload."""

    prompt: list[int]
    params: SamplingParams
    num_steps_before: int
    """The steps between the request before and this one."""
    delay: float
    """The seconds between them."""


def make_workload(seed: int, kind: str, count: int = 40) -> list[Request]:
    """Returns random requests, of which every third begins with the same prompt.

    Args:
        seed: The seed of everything.
        kind: `greedy`, `seeded`, `fixed` for unseeded ones of a fixed length, or `free` for
            unseeded ones, of which most end at a stop token.
        count: The number of requests.
    """
    rng = random.Random(seed)
    shared = [rng.randrange(1, 250) for _ in range(32)]
    stop_token_ids = None if kind == "fixed" else [*range(2, 250, 24)]
    requests = []
    for number in range(count):
        own = [rng.randrange(1, 250) for _ in range(rng.randrange(4, 90))]
        params = SamplingParams(
            temperature=0.0 if kind == "greedy" else 1.0,
            seed=number if kind == "seeded" else None,
            max_tokens=rng.randrange(15, 70),
            ignore_eos=True,
            stop_token_ids=stop_token_ids,
        )
        prompt = shared + own if rng.randrange(3) == 0 else own
        requests.append(Request(prompt, params, rng.randrange(5), rng.expovariate(12.0)))
    return requests


def record(path: Path, requests: Sequence[Request], *, by_time: bool, **settings: Any) -> None:
    """Records a real run of a workload."""
    engine = LLMEngine(EngineConfig(device="cpu", **(BASE | settings)))
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(engine, engine_id="real", control=False))
        steps = StepPublisher(sink)
        (_serve if by_time else _serve_by_step)(engine, steps, requests)


def _serve_by_step(engine: LLMEngine, steps: StepPublisher, requests: Sequence[Request]) -> None:
    for number, request in enumerate(requests):
        for _ in range(request.num_steps_before):
            if engine.has_unfinished_requests():
                steps.stepped(engine.step())
        for group in engine.add_request(f"req-{number}", request.prompt, request.params):
            steps.arrived(group)
    while engine.has_unfinished_requests():
        steps.stepped(engine.step())


def _serve(engine: LLMEngine, steps: StepPublisher, requests: Sequence[Request]) -> None:
    times = itertools.accumulate((request.delay for request in requests), initial=time.time())
    waiting = [*enumerate(zip(times, requests, strict=False))]
    waiting.reverse()
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[-1][1][0] <= time.time():
            number, (due, request) = waiting.pop()
            name = f"req-{number}"
            for group in engine.add_request(name, request.prompt, request.params, due):
                steps.arrived(group)
        if engine.has_unfinished_requests():
            steps.stepped(engine.step())
        elif waiting:
            time.sleep(max(waiting[-1][1][0] - time.time(), 0.0))


def repeat_random(num_runs: int, folder: Path) -> Counter[str]:
    """Repeats random runs; counts runs, steps and those that differ."""
    models = small_models(folder)
    counts: Counter[str] = Counter()
    path, again = folder / "run.seqtop", folder / "again.seqtop"
    for seed in range(num_runs):
        run = record_random(path, seed, models)
        replayed(path, again, ReplayOptions(model=str(run.engine.config.model)))
        comparison = compared(path, again)
        counts["runs"] += 1
        counts["steps"] += run.num_steps
        counts["equal steps"] += comparison.num_equal_steps
        counts["aborts"] += run.num_aborts
        if comparison.first is not None or comparison.settings:
            counts["different runs"] += 1
            print(f"seed {seed}: {comparison.first or comparison.settings}")
    return counts


KINDS = ("greedy",) * 3 + ("seeded",) * 2 + ("fixed",) * 2 + ("free",) * 3
"""The kinds of the ten workloads."""


class Pair(NamedTuple):
    """A prediction beside a real run with the same settings."""

    kind: str
    change: str
    has_effect: bool
    """True if the real run differs from the base run in a decision."""
    is_equal: bool
    """True if all decisions are equal."""
    num_other_lengths: int
    num_requests: int


def predict_pairs(folder: Path, kinds: Sequence[str] = KINDS) -> Iterator[Pair]:
    """Yields a pair for each workload and change; arrivals are before the same steps."""
    model = make_checkpoint("llama", folder / "model", hidden_size=32, intermediate_size=48)
    base, real, predicted = (folder / f"{name}.seqtop" for name in ("base", "real", "predicted"))
    for seed, kind in enumerate(kinds):
        requests = make_workload(seed, kind)
        record(base, requests, by_time=False, model=model)
        for name, change in CHANGES.items():
            record(real, requests, by_time=False, model=model, **change)
            options = ReplayOptions(
                settings=change, arrivals="step", step_time=STEP_TIME, model=str(model)
            )
            replayed(base, predicted, options)
            runs = [_read(path) for path in (base, real, predicted)]
            decided = [[step[2:8] for step in run.steps] for run in runs]
            lengths = [[request.num_output_tokens for request in run.requests] for run in runs]
            num_other = sum(a != b for a, b in zip(lengths[1], lengths[2], strict=True))
            yield Pair(
                kind,
                name,
                decided[0] != decided[1],
                decided[1] == decided[2],
                num_other,
                len(requests),
            )


def _read(path: Path) -> RunDecisions:
    with FileStore(path) as recording:
        return RunDecisions(recording)


FIGURES = ("TTFT p50", "TTFT p90", "E2E p50", "E2E p90", "throughput")


def _figures(run: RunFigures) -> tuple[float, ...]:
    values = run.ttft.p50, run.ttft.p90, run.e2e.p50, run.e2e.p90, run.throughput
    return tuple(value or 0.0 for value in values)


def measure_clock(
    folder: Path, num_workloads: int, num_repeated: int, num_changes: int
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Predicts by the clock, with the bundled model.

    Returns:
        The relative errors of each prediction, and the relative differences of repeated real runs.
    """
    errors: list[tuple[float, ...]] = []
    spread: list[tuple[float, ...]] = []
    base, real, predicted = (folder / f"{name}.seqtop" for name in ("base", "real", "predicted"))
    for seed in range(num_workloads):
        requests = make_workload(seed, "greedy", 30)
        record(base, requests, by_time=True)
        with FileStore(base) as recording:
            workload = read_workload(recording)
        step_time = fit(workload.steps)
        for _ in range(num_repeated):
            record(real, requests, by_time=True)
            spread.append(_differences(_of(real), workload.figures))
        chosen = random.Random(seed).sample([*CHANGES], num_changes)
        for name in chosen:
            record(real, requests, by_time=True, **CHANGES[name])
            options = ReplayOptions(settings=CHANGES[name], arrivals="time", step_time=step_time)
            result = replayed(base, predicted, options)
            errors.append(_differences(result.figures, _of(real)))
            print(seed, name, *(f"{error:+.0%}" for error in errors[-1]), flush=True)
    return errors, spread


def _of(path: Path) -> RunFigures:
    with FileStore(path) as recording:
        return read_workload(recording).figures


def _differences(one: RunFigures, other: RunFigures) -> tuple[float, ...]:
    pairs = zip(_figures(one), _figures(other), strict=True)
    return tuple(a / b - 1 if b else 0.0 for a, b in pairs)


def record_large(path: Path, num_requests: int) -> None:
    """Records the bundled engine with made-up tokens, so that no model runs."""
    rng, clock = random.Random(0), Clock()
    answers = {
        f"req-{number}": Answer(
            token_ids=[rng.randrange(3, 250) for _ in range(64)], logprobs=[-1.0] * 64
        )
        for number in range(num_requests)
    }

    def ran(size: Size) -> float:
        seconds = STEP_TIME.step_seconds(size) * rng.uniform(0.9, 1.1)
        clock.now += seconds
        return seconds

    clock.now = 1e9
    settings = BASE | {"num_gpu_blocks": 600, "max_num_seqs": 64, "max_num_batched_tokens": 512}
    config = EngineConfig(device="cpu", model=DEFAULT_MODEL, **settings)
    engine = LLMEngine(config, clock=clock, timer=clock, worker=RecordedWorker(answers, ran))
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(engine, engine_id="large", control=False))
        steps = StepPublisher(sink)
        due = clock.now
        for number in range(num_requests):
            due += rng.expovariate(110.0)
            while engine.has_unfinished_requests() and clock.now < due:
                steps.stepped(engine.step())
            clock.now = max(clock.now, due)
            prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(16, 120))]
            params = SamplingParams(
                temperature=0.0, max_tokens=rng.randrange(16, 64), ignore_eos=True
            )
            for group in engine.add_request(f"req-{number}", prompt, params, due):
                steps.arrived(group)
        while engine.has_unfinished_requests():
            steps.stepped(engine.step())


def measure_large(folder: Path, num_requests: int) -> dict[str, float]:
    """Measures the proof and eight settings of a large recording, by the command."""
    path = folder / "large.seqtop"
    record_large(path, num_requests)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = ["whatif", str(path), "--sweep", "num_gpu_blocks=400..1100:8", "--json"]
    subprocess.run(
        [sys.executable, "-m", "seqtop", *command], check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - started,
        "cpu seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "largest process, MiB": after.ru_maxrss / 1024,
        "recording, MiB": path.stat().st_size / 2**20,
    }


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release whatif")
    parser.add_argument("what", choices=("random", "pairs", "clock", "large"))
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--workloads", type=int, default=10)
    parser.add_argument("--repeated", type=int, default=2)
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.what == "random":
            print(dict(repeat_random(options.runs, folder)))
        elif options.what == "large":
            print(measure_large(folder, options.requests))
        elif options.what == "clock":
            measured = measure_clock(folder, options.workloads, options.repeated, options.changes)
            _print_errors(*measured)
        else:
            _print_pairs([*predict_pairs(folder)])


def _print_errors(errors: list[tuple[float, ...]], spread: list[tuple[float, ...]]) -> None:
    for title, rows in ((f"{len(errors)} predictions", errors), (f"{len(spread)} runs", spread)):
        for figure, values in zip(FIGURES, zip(*rows, strict=True), strict=True):
            sizes = sorted(map(abs, values))
            p90 = sizes[max(-(-len(sizes) * 9 // 10) - 1, 0)]
            print(f"{title}, {figure}: median {statistics.median(sizes):.1%}, p90 {p90:.1%}")


def _print_pairs(pairs: list[Pair]) -> None:
    print("| change | lengths known: equal | with effect | lengths free: equal |")
    for change in CHANGES:
        known = [pair for pair in pairs if pair.change == change and pair.kind != "free"]
        free = [pair for pair in pairs if pair.change == change and pair.kind == "free"]
        print(
            f"| {change} | {sum(pair.is_equal for pair in known)} of {len(known)}"
            f" | {sum(pair.has_effect for pair in known)}"
            f" | {sum(pair.is_equal for pair in free)} of {len(free)},"
            f" {sum(pair.num_other_lengths for pair in free)} of"
            f" {sum(pair.num_requests for pair in free)} requests of another length |"
        )
