"""The settings that `seqtop advise` names, run for real beside a grid of settings.

python -m tests.release advice --workloads 20 --seed 0

There are two kinds of workloads: by step, with requests that arrive before the same steps, and by
the clock, with requests that arrive by time. The times of steps are made up, with a part that is
not linear and one by chance, so that a busy machine changes nothing. With --model, the bundled
model runs instead, and its clock counts the CPU time of the process without pauses. On a machine
that others use, two equal runs still differ there, and the best of nine runs is best by luck too:
so the best setting of the grid and the advised one are run again, in turns, and their medians are
compared.

The advice has only the recording of the first run; each point of the grid, and the advised setting,
is another real run.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

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

Kind: TypeAlias = Literal["step", "clock"]

GRID: list[dict[str, Any]] = [
    {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
    for seqs in (4, 8, 16)
    for tokens in (48, 96, 192)
]
NEAR = 0.05
"""The goodput by which the advised setting may be below the best of the grid."""
NUM_REQUESTS = 40
_NUM_RUNS = 5
"""The runs of the advised setting and of the best of the grid. Simulated runs are all equal."""
_GAP = 0.0005
"""The seconds between two simulated steps."""
_SLOWER: dict[Kind, float] = {"step": 1.0, "clock": 4.0}
"""The factor by which simulated steps take longer: so that requests that arrive by time wait."""


class Outcome(NamedTuple):
    """The real runs of one workload."""

    kind: str
    slo: Slo
    first: float
    """The goodput with the settings of the recording."""
    advised: float
    best: float
    """The goodput of the grid's best setting."""
    settings: str
    best_settings: str

    @property
    def is_near(self) -> bool:
        """True if the advised setting is about as good as the best of the grid."""
        return self.advised >= self.best - NEAR


def compare(
    seed: int, kind: Kind, folder: Path, num_requests: int = NUM_REQUESTS, *, model: bool = False
) -> Outcome:
    """Runs a workload with all settings of the grid, and with the advised ones."""
    rng = random.Random(seed)
    requests = make_workload(seed, "fixed", num_requests)
    settings = rng.choice(GRID) | {"num_gpu_blocks": rng.choice((48, 96, 160))}
    path = folder / "run.seqtop"
    _run(path, requests, seed, kind, settings, model=model)
    usual = _figures(path, Slo())
    # Limits that about half of the requests keep with the recorded settings, or fewer.
    slo = Slo(
        ttft=(usual.ttft.p50 or 1.0) * rng.uniform(0.5, 1.2),
        tpot=(usual.tpot.p50 or 1.0) * rng.uniform(1.1, 2.0),
    )
    first = _figures(path, slo).share_within_slo or 0.0
    arrivals: Arrivals = "step" if kind == "step" else "time"
    advice = advise(Question(source=str(path), arrivals=arrivals), slo)
    assert advice.best is not None, "the recording was not repeated"
    real = folder / "real.seqtop"

    def goodput(changes: dict[str, Any]) -> float:
        _run(real, requests, seed, kind, settings | changes, model=model)
        return _figures(real, slo).share_within_slo or 0.0

    best = max(GRID, key=goodput)
    runs = [
        (goodput(advice.best.settings), goodput(best)) for _ in range(_NUM_RUNS if model else 1)
    ]
    advised, highest = (statistics.median(goodputs) for goodputs in zip(*runs, strict=True))
    named = settings_text(advice.best.settings), settings_text(best)
    return Outcome(kind, slo, first, advised, highest, *named)


def _figures(path: Path, slo: Slo) -> RunFigures:
    counter = FigureCounter(slo)
    with FileStore(path) as recording:
        for _, event in recording.events(recording.first, recording.last):
            if event is not None:
                counter.count(event)
    return counter.figures()


def _run(
    path: Path,
    requests: Sequence[Request],
    seed: int,
    kind: Kind,
    settings: dict[str, Any],
    *,
    model: bool,
) -> None:
    """Records a run."""
    clock: _CpuClock | _SimulatedClock
    if model:
        clock = _CpuClock()
        config = EngineConfig(device="cpu", **(BASE | settings))
        engine = LLMEngine(config, clock=clock, timer=clock)
    else:
        clock = _SimulatedClock()
        engine = _simulated(clock, requests, seed, _SLOWER[kind], settings)
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(engine, engine_id="real", control=False))
        steps = StepPublisher(sink)

        def add(number: int, arrival_time: float | None = None) -> None:
            request = requests[number]
            for group in engine.add_request(
                f"req-{number}", request.prompt, request.params, arrival_time
            ):
                steps.arrived(group)

        def step() -> None:
            clock.pass_gap()
            steps.stepped(engine.step())

        if kind == "step":
            for number, request in enumerate(requests):
                for _ in range(request.num_steps_before):
                    if engine.has_unfinished_requests():
                        step()
                add(number)
        else:
            times = itertools.accumulate(request.delay for request in requests)
            start = clock()
            for number, since in enumerate(times):
                while engine.has_unfinished_requests() and clock() < start + since:
                    step()
                clock.skip_to(start + since)
                add(number, start + since)
        while engine.has_unfinished_requests():
            step()


class _CpuClock:
    """A clock that counts the CPU time of this process, and the pauses that are left out."""

    def __init__(self) -> None:
        self._offset = 1e9 - time.process_time()

    def __call__(self) -> float:
        return self._offset + time.process_time()

    def skip_to(self, moment: float) -> None:
        """Goes on to a moment, unless that has passed."""
        self._offset += max(moment - self(), 0.0)

    def pass_gap(self) -> None:
        """Does nothing: the time between two steps passes by itself."""


class _SimulatedClock(Clock):
    """A clock that stands still but for steps and gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1e9

    def skip_to(self, moment: float) -> None:
        """Goes on to a moment, unless that has passed."""
        self.now = max(self.now, moment)

    def pass_gap(self) -> None:
        """Goes on by the time between two steps."""
        self.now += _GAP


def _simulated(
    clock: Clock, requests: Sequence[Request], seed: int, slower: float, settings: dict[str, Any]
) -> LLMEngine:
    """Returns an engine whose steps take simulated times, with tokens that are made up."""
    rng = random.Random(seed)

    def step_seconds(size: Size) -> float:
        tokens = size.num_prefill_tokens + size.num_decode_tokens
        seconds = 0.004 + 2e-5 * size.num_prefill_tokens + 2e-4 * size.num_decode_tokens
        return slower * (seconds + 1e-7 * tokens**1.5) * rng.uniform(0.95, 1.05)

    outputs = {
        f"req-{number}": [1 + number] * (request.params.max_tokens or 1)
        for number, request in enumerate(requests)
    }
    return engine_without_model(clock, outputs, step_seconds, dtype="float32", **(BASE | settings))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release advice")
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--kind", choices=("step", "clock", "both"), default="both")
    parser.add_argument("--model", action="store_true", help="run the bundled model")
    options = parser.parse_args(arguments)
    outcomes: list[Outcome] = []
    print("workload, kind: goodput of the recording, of the advised setting, and best of the grid;")
    print("objectives: the advised setting; the best of the grid")
    for number in range(options.workloads):
        kind: Kind = ("step", "clock")[number % 2] if options.kind == "both" else options.kind
        with tempfile.TemporaryDirectory() as name:
            own = compare(
                options.seed + number, kind, Path(name), options.requests, model=options.model
            )
        outcomes.append(own)
        print(
            f"{options.seed + number}, {own.kind}: {own.first:.0%}, {own.advised:.0%},"
            f" {own.best:.0%}{'' if own.is_near else '  WORSE'}  {own.slo}: {own.settings};"
            f" {own.best_settings}",
            flush=True,
        )
    for kind in ("step", "clock"):
        of_kind = [own for own in outcomes if own.kind == kind]
        if of_kind:
            near = sum(own.is_near for own in of_kind)
            print(f"{kind}: {near} of {len(of_kind)} within {NEAR:.0%} of the best of the grid")
