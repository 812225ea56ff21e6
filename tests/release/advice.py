"""The settings that `seqtop advise` names, run for real beside a grid of settings.

python -m tests.release advice --workloads 20 --seed 0

Half of the workloads are stepped: their requests arrive before the same steps, and the times of
steps are made up, with a part that is not linear and one by chance, so that a busy machine changes
nothing. The others run by the clock with the bundled model. Their clock counts the CPU time of the
process, without pauses, so that other processes of a busy machine change less. The advice has only
the recording of the first run; each point of the grid, and the advised setting, is another real
run.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.history import FileStore, FileWriter
from seqtop.history.step_time import Size
from seqtop.state.slo import Slo
from seqtop.whatif.advise import advise, settings_text
from seqtop.whatif.figures import FigureCounter, RunFigures
from seqtop.whatif.predict import Question
from seqtop.whatif.replay import Arrivals, Clock, RecordingSink
from tests.release.whatif import BASE, Request, make_workload
from tests.support.simulated_model import engine_without_model

GRID = [
    {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    for seqs in (4, 8, 16)
    for tokens in (48, 96, 192)
]
NEAR = 0.05
"""The goodput by which the advised setting may be below the best of the grid."""
NUM_REQUESTS = 40
_GAP = 0.0005
"""The seconds between two simulated steps."""


class Outcome(NamedTuple):
    """The real runs of one workload."""

    kind: str
    slo: Slo
    first: float
    """The goodput with the settings of the recording."""
    advised: float
    best: float
    """The highest goodput of the grid."""
    settings: str

    @property
    def is_near(self) -> bool:
        """True if the advised setting is about as good as the best of the grid."""
        return self.advised >= self.best - NEAR


def compare(seed: int, *, by_time: bool, folder: Path, num_requests: int = NUM_REQUESTS) -> Outcome:
    """Runs a workload with all settings of the grid, and with the advised ones."""
    rng = random.Random(seed)
    requests = make_workload(seed, "fixed", num_requests)
    settings = rng.choice(GRID) | {"num_gpu_blocks": rng.choice((48, 96, 160))}
    path = folder / "run.seqtop"
    _run(path, requests, seed, by_time, settings)
    usual = _figures(path, Slo())
    # Limits that about half of the requests keep with the recorded settings, or fewer.
    slo = Slo(
        ttft=(usual.ttft.p50 or 1.0) * rng.uniform(0.5, 1.2),
        tpot=(usual.tpot.p50 or 1.0) * rng.uniform(1.1, 2.0),
    )
    first = _figures(path, slo).share_within_slo or 0.0
    arrivals: Arrivals = "time" if by_time else "step"
    advice = advise(Question(source=str(path), arrivals=arrivals), slo)
    assert advice.best is not None, "the recording was not repeated"
    real = folder / "real.seqtop"

    def goodput(changes: dict[str, Any]) -> float:
        _run(real, requests, seed, by_time, settings | changes)
        return _figures(real, slo).share_within_slo or 0.0

    best = max(map(goodput, GRID))
    advised = goodput(advice.best.settings)
    kind = "clock" if by_time else "step"
    return Outcome(kind, slo, first, advised, best, settings_text(advice.best.settings))


def _figures(path: Path, slo: Slo) -> RunFigures:
    counter = FigureCounter(slo)
    with FileStore(path) as recording:
        for _, event in recording.events(recording.first, recording.last):
            if event is not None:
                counter.count(event)
    return counter.figures()


def _run(
    path: Path, requests: Sequence[Request], seed: int, by_time: bool, settings: dict[str, Any]
) -> None:
    if by_time:
        _serve(path, requests, settings)
    else:
        _simulate(path, requests, seed, settings)


class _CpuClock:
    """A clock that counts the CPU time of this process, and the pauses that are left out."""

    def __init__(self) -> None:
        self._offset = 1e9 - time.process_time()

    def __call__(self) -> float:
        return self._offset + time.process_time()

    def skip_to(self, moment: float) -> None:
        """Goes on to a moment, unless that has passed."""
        self._offset += max(moment - self(), 0.0)


def _serve(path: Path, requests: Sequence[Request], settings: dict[str, Any]) -> None:
    """Records a run of the bundled model, whose requests arrive by the clock."""
    clock = _CpuClock()
    config = EngineConfig(device="cpu", **(BASE | settings))
    engine = LLMEngine(config, clock=clock, timer=clock)
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(engine, engine_id="real", control=False))
        steps = StepPublisher(sink)
        times = itertools.accumulate((request.delay for request in requests), initial=clock())
        waiting = [*enumerate(zip(times, requests, strict=False))]
        waiting.reverse()
        while waiting or engine.has_unfinished_requests():
            if not engine.has_unfinished_requests():
                clock.skip_to(waiting[-1][1][0])
            while waiting and waiting[-1][1][0] <= clock():
                number, (due, request) = waiting.pop()
                name = f"req-{number}"
                for group in engine.add_request(name, request.prompt, request.params, due):
                    steps.arrived(group)
            if engine.has_unfinished_requests():
                steps.stepped(engine.step())


def _simulate(path: Path, requests: Sequence[Request], seed: int, settings: dict[str, Any]) -> None:
    """Records a run whose steps take simulated times, and with tokens that are made up."""
    rng, clock = random.Random(seed), Clock()
    clock.now = 1e9

    def step_seconds(size: Size) -> float:
        tokens = size.num_prefill_tokens + size.num_decode_tokens
        seconds = 0.004 + 2e-5 * size.num_prefill_tokens + 2e-4 * size.num_decode_tokens
        return (seconds + 1e-7 * tokens**1.5) * rng.uniform(0.95, 1.05)

    outputs = {
        f"req-{number}": [1 + number] * (request.params.max_tokens or 1)
        for number, request in enumerate(requests)
    }
    engine = engine_without_model(
        clock, outputs, step_seconds, dtype="float32", **(BASE | settings)
    )

    def step() -> None:
        clock.now += _GAP
        steps.stepped(engine.step())

    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(engine, engine_id="simulated", control=False))
        steps = StepPublisher(sink)
        for number, request in enumerate(requests):
            for _ in range(request.num_steps_before):
                if engine.has_unfinished_requests():
                    step()
            for group in engine.add_request(f"req-{number}", request.prompt, request.params):
                steps.arrived(group)
        while engine.has_unfinished_requests():
            step()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release advice")
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--kind", choices=("step", "clock", "both"), default="both")
    options = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    print("workload, kind: goodput of the recording, of the advised setting, and best of the grid")
    for number in range(options.workloads):
        by_time = options.kind == "clock" or (options.kind == "both" and number % 2 == 1)
        with tempfile.TemporaryDirectory() as name:
            own = compare(
                options.seed + number,
                by_time=by_time,
                folder=Path(name),
                num_requests=options.requests,
            )
        outcomes.append(own)
        print(
            f"{options.seed + number}, {own.kind}: {own.first:.0%}, {own.advised:.0%},"
            f" {own.best:.0%}{'' if own.is_near else '  WORSE'}  {own.slo}: {own.settings}",
            flush=True,
        )
    for kind in ("step", "clock"):
        of_kind = [own for own in outcomes if own.kind == kind]
        if of_kind:
            near = sum(own.is_near for own in of_kind)
            print(f"{kind}: {near} of {len(of_kind)} within {NEAR:.0%} of the best of the grid")
