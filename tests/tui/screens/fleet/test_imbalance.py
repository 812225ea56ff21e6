"""Two ranks at real sockets, of which one is full and the other one idle."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.fleet.screen import FleetScreen
from tests.support.piloting import play, screen, until
from tests.support.simulated_scheduler import SimulatedScheduler


def rank(number: int, num_requests: int) -> SimulatedScheduler:
    """A rank that has served a request; `num_requests` have come to it at once."""
    run = SimulatedScheduler(
        engine_id=f"dp{number}",
        incarnation=f"r{number}",
        data_parallel_rank=number,
        max_num_seqs=64,
    )
    run.add("first", 40, 5)
    run.run_out()
    for index in range(num_requests):
        run.add(f"q{index}", 200, 150)
    run.steps(20)
    return run


@pytest.mark.parametrize("width", [120, 250])
def test_each_screen_names_the_full_rank_beside_the_idle_one(width: int) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="sq"))
        sessions = []
        for number, num_requests in enumerate((60, 0)):
            run, endpoint = rank(number, num_requests), f"ipc://{Path(directory, str(number))}"
            engine = stack.enter_context(MessagePublisher(endpoint, run.info, EngineState()))
            for event in run.events:
                engine.publish(event)
            sessions.append(stack.enter_context(Session(endpoint)))
        app = SeqtopApp(*sessions)
        with play(app, (width, 30)) as pilot:
            until(pilot, lambda: "is full beside dp1 (rank 1, 0 waiting, KV 0%)" in screen(app))
            assert isinstance(app.screen, FleetScreen)
            full = next(line for line in screen(app).splitlines() if "is full" in line)
            assert "dp0 (rank 0, 4" in full
            pilot.press("1")
            until(pilot, lambda: not isinstance(app.screen, FleetScreen))
            first = app.engines.all[0]
            # It changes once a second, and the first one may be of a state that is still to come.
            until(pilot, lambda: "dp0 (rank 0, 4" in first.verdict.sentence)
            pilot.draw()
            assert first.verdict.sentence.startswith("limited by KV blocks")
            idle = app.engines.all[1]
            assert "is full" not in idle.verdict.sentence
            header = screen(app).splitlines()[0]
            assert "limited by KV blocks" in header
            assert ("is full beside dp1" in header) is (width > 200)
