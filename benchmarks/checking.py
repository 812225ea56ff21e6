"""Measures how fast `seqtop check` checks a recording.

The bundled engine's scheduler and block manager run without a model, under a random load that fills
the batch: chunked prefills, prefix hits, preemptions. A delta is the metadata of one sequence group
in one step, as the messages have it. The figures are the rules alone, whose time is that of all
less the reducer's; the reducer and the rules; and `seqtop check FILE` from its start to its end,
which also starts Python, reads the file and decodes it. All of it is CPU time.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import running
from benchmarks.figure import Figure, Findings, Limit, middle
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.checks.checker import Checker
from seqtop.history import FileWriter
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.whatif.replay import Clock
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, Step
from seqtop.wire.snapshot import Snapshot
from tests.support.recordings import append
from tests.support.simulated_model import engine_without_model

TITLE = "Checking a recording: check"
MIN_RATE = 50_000.0
SIZES = (64, 256)
"""Sequences in a step."""
NUM_DELTAS = 30_000
ROUNDS = 3


class Run:
    """A run of the bundled engine's scheduler, of which the messages are kept.

    Args:
        size: The sequences that run at once.
        num_deltas: The deltas after which it ends.

    Attributes:
        payloads: The messages.
        num_deltas: The deltas in them.
    """

    def __init__(self, size: int, num_deltas: int) -> None:
        self.payloads: list[bytes] = []
        self.num_deltas = 0
        rng, clock = random.Random(size), Clock()
        clock.now = 1_000.0
        shared = [rng.randrange(1, 257) for _ in range(64)]
        lengths = [rng.randint(40, 240) for _ in range(2 * size + num_deltas // 40)]
        engine = engine_without_model(
            clock,
            {f"req-{number}": [7] * length for number, length in enumerate(lengths)},
            lambda step: 0.01 + 0.0001 * step.num_prefill_tokens,
            num_gpu_blocks=size * 13,
            max_num_seqs=size,
            max_num_batched_tokens=size + 512,
            max_model_len=512,
        )
        steps, number = StepPublisher(self), 0
        self.publish(engine_info(engine, engine_id="checked", control=False))
        while self.num_deltas < num_deltas:
            while len(engine.scheduler.running) + len(engine.scheduler.waiting) < size * 9 // 8:
                own = [rng.randrange(1, 257) for _ in range(rng.randint(20, 150))]
                params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=lengths[number])
                prompt = shared[: rng.choice((0, 0, 32, 64))] + own
                for group in engine.add_request(f"req-{number}", prompt, params, clock.now):
                    steps.arrived(group)
                number += 1
            steps.stepped(engine.step())

    def publish(self, event: Event) -> None:
        """Receives a message of the engine."""
        self.payloads.append(codec.encode(event))
        if isinstance(event, Step) and event.execute is not None:
            self.num_deltas += len(event.execute.seq_group_metadata_list)


class TimedState(EngineState):
    """A state that measures its reducer."""

    seconds: float = 0.0
    """The CPU seconds of all changes so far."""

    def apply(self, event: Event | Snapshot) -> Iterable[int]:
        started = time.process_time()
        touched = [*super().apply(event)]
        self.seconds += time.process_time() - started
        return touched


def measure(*, tiny: bool = False) -> Findings:
    figures: list[Figure] = []
    for size in SIZES:
        run = Run(size, 500 if tiny else NUM_DELTAS)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "run.seqtop")
            with FileWriter(path) as writer:
                append(writer, run.payloads, EngineState())
            rounds = [(*_seconds(run), _command(path)) for _ in range(1 if tiny else ROUNDS)]
        rules, reducer, command = (
            middle([run.num_deltas / spent[index] for spent in rounds]) for index in range(3)
        )
        both = middle([run.num_deltas / (spent[0] + spent[1]) for spent in rounds])
        named = (("rules", rules), ("reducer and rules", both), ("the whole command", command))
        for what, value in named:
            figure = Figure(
                what=f"{what}, {size} sequences a step",
                measured=f"CPU, median of {len(rounds)} rounds of {run.num_deltas:,} deltas",
                value=value,
                unit="deltas/s",
                peer="the reducer alone",
                peer_value=reducer,
                ratio=value / reducer,
            )
            if what == "rules":
                figure.limit = Limit(MIN_RATE, at_least=True)
            figures.append(figure)
    return Findings(figures)


def _seconds(run: Run) -> tuple[float, float]:
    """Returns the CPU seconds of the rules, and those of the reducer."""
    events = [parsing.event(payload) for payload in run.payloads]
    state = TimedState()
    checker = Checker(state)
    started = time.process_time()
    found = [finding for event in events for finding in checker.apply(event)]
    spent = time.process_time() - started
    if found:
        raise AssertionError(f"a correct run has findings: {found[:3]}")
    return spent - state.seconds, state.seconds


def _command(path: Path) -> float:
    """Returns the CPU seconds of `seqtop check`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "seqtop", "check", str(path)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    running.alone(measure)
