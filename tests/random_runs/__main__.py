"""Checks random runs of the bundled engine, and prints what is found.

    python -m tests.random_runs 1000 --seed 1

Each run is published and checked as `seqtop check` checks an engine, by a viewer that joins before
it or in it. The thresholds are stricter than the default ones: what depends on seconds or on later
requests is reported at once. Each run can be repeated by its seed. The exit status is 1 if there
are findings, or if a run could not be checked completely.
"""

import argparse
import gc
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from engine_stub.config import DEFAULT_MODEL
from seqtop.checks.live_checker import LiveChecker
from seqtop.checks.live_report import report_live
from seqtop.checks.report import Report, sentence
from seqtop.checks.thresholds import Thresholds
from seqtop.history.memory_store import MemoryStore
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from tests.support.random_runs import RandomRun, small_models
from tests.support.waiting import SECONDS

THRESHOLDS = Thresholds(
    no_progress_steps=2, stalled_seconds=1e-6, overtaken_requests=1, overtaken_seconds=1e-6
)
SECONDS_BETWEEN_LINES = 60.0


def check(run: RandomRun, endpoint: str, num_missed: int) -> Report:
    """Runs an engine to its end; a viewer that joins after `num_missed` steps checks it."""
    session = Session(endpoint, history=MemoryStore(max_bytes=0))
    checker = LiveChecker(session, thresholds=THRESHOLDS)
    with ExitStack() as stack:
        stack.callback(run.engine.close)
        publisher = stack.enter_context(
            MessagePublisher(endpoint, run.info(), EngineState(), clock=run.time)
        )
        steps = run.steps(publisher)
        for _ in islice(steps, num_missed):
            pass
        stack.enter_context(checker.running())
        stack.enter_context(session)
        session.await_engine(SECONDS)
        for _ in steps:
            pass
        publisher.close()
        if not session.wait_for(ConnectionState.STOPPED, timeout=SECONDS):
            raise TimeoutError("the end of the engine was not received")
    return report_live(session, checker)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, help="the number of runs")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next have more")
    options = parser.parse_args(arguments)
    num_steps = num_requests = num_findings = num_incomplete = 0
    with tempfile.TemporaryDirectory(prefix="sq") as directory:
        models = [DEFAULT_MODEL, *small_models(Path(directory))]
        gc.freeze()  # what is imported, or each collection traverses it
        started = printed = time.monotonic()
        last = options.seed + options.count - 1
        for seed in range(options.seed, last + 1):
            num_missed = random.Random(seed).choice((0, 0, 1, 5))
            run = RandomRun(seed, models, is_published=True)
            report = check(run, f"ipc://{directory}/e", num_missed)
            gc.collect()  # an engine's pools are few objects and many bytes
            for finding in report.findings:
                print(f"seed {seed}: {sentence(finding)}", flush=True)
            is_incomplete = report.num_gaps > 0 or report.num_steps != run.num_steps - num_missed
            if is_incomplete and run.num_steps > num_missed:
                print(f"seed {seed}: {report.problem or 'there are gaps'}", flush=True)
                num_incomplete += 1
            num_requests += len(run.groups)
            num_steps += report.num_steps
            num_findings += report.num_errors + report.num_warnings
            now = time.monotonic()
            if seed == last or now - printed >= SECONDS_BETWEEN_LINES:
                printed = now
                print(
                    f"{now - started:6,.0f} s: runs {options.seed} to {seed},"
                    f" {num_requests:,} requests,"
                    f" {num_steps:,} steps checked, {num_findings:,} findings,"
                    f" {num_incomplete:,} runs not checked completely",
                    flush=True,
                )
    return 1 if num_findings or num_incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
