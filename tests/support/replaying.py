"""Replays recordings of the bundled engine in this process."""

from pathlib import Path

from engine_stub.entrypoints.whatif import BundledScheduler
from seqtop.diff.comparison import RunComparison, compare
from seqtop.diff.run import RunDecisions
from seqtop.history import FileStore, FileWriter
from seqtop.whatif.figures import RunFigures
from seqtop.whatif.replay import Clock, RecordingSink, ReplayOptions, ReplayResult, WorkloadReplay
from seqtop.whatif.workload import read_workload
from tests.support.random_runs import RandomRun


def record_random(path: Path, seed: int, models: list[Path]) -> RandomRun:
    """Records a random run, and returns it."""
    run = RandomRun(seed, models)
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(run.info())
        for _ in run.steps(sink):
            pass
    return run


def replayed(source: Path, target: Path, options: ReplayOptions) -> ReplayResult:
    """Replays a recording into another one."""
    with FileStore(source) as recording:
        workload = read_workload(recording)
    clock = Clock()
    with FileWriter(target, overwrite=True) as writer:
        replay = WorkloadReplay(workload, options, clock, RecordingSink(writer))
        return replay.run(BundledScheduler(workload, options, replay, clock, replay, source.name))


def figures_alone(source: Path, options: ReplayOptions) -> RunFigures:
    """Replays a recording into none, for its figures."""
    with FileStore(source) as recording:
        workload = read_workload(recording)
    clock = Clock()
    replay = WorkloadReplay(workload, options, clock)
    scheduler = BundledScheduler(workload, options, replay, clock, replay, source.name)
    return replay.run(scheduler).figures


def compared(a: Path, b: Path) -> RunComparison:
    """Compares two recordings."""
    with FileStore(a) as first, FileStore(b) as second:
        return compare(RunDecisions(first), RunDecisions(second))
