"""The example of `docs/protocol.md`, which knows nothing of seqtop, holds to the contract."""

import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seqtop.checks.live_report import check_protocol
from seqtop.checks.report import Report
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.transport.connection import ConnectionState
from tests.support.waiting import SECONDS, wait_until

EXAMPLE = Path(__file__).parents[2] / "docs" / "example_engine.py"
PROMPTS = ("Once", "There was a king", "Far away and long ago")


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def engine(example: dict[str, Any], endpoint: str) -> Iterator[Any]:
    stream = example["Stream"](endpoint)
    yield example["Engine"](stream)
    stream.context.destroy(linger=0)


def join(session: Session, engine: Any) -> None:
    """Let the example answer until the viewer has its snapshot."""

    def live() -> bool:
        engine.stream.answer(engine.snapshot())
        return session.connection.state is ConnectionState.LIVE

    session.start()
    wait_until(live)


def catch_up(session: Session, engine: Any) -> None:
    wait_until(lambda: session.sequence_number == engine.stream.number - 1)


def test_two_viewers_see_the_same_at_every_step(
    engine: Any, endpoint: str, example: dict[str, Any]
) -> None:
    early, late = Session(endpoint), Session(endpoint)
    try:
        join(early, engine)
        for number, prompt in enumerate(PROMPTS):
            engine.add(number, prompt)
        num_steps = 0
        while engine.running or engine.waiting:
            engine.step()
            num_steps += 1
            if num_steps == 10:
                join(late, engine)
            catch_up(early, engine)
            assert_shows(early, engine)
            if num_steps >= 10:
                catch_up(late, engine)
                assert_shows(late, engine)
    finally:
        early.close()
        late.close()
    for session in (early, late):
        assert session.state.num_anomalies == 0, session.state.last_anomaly
        assert session.connection.num_errors == session.connection.num_missed == 0
        assert session.state.stats is not None
        assert session.state.stats.num_free_blocks == example["NUM_BLOCKS"]
    assert len(early.state.finished) == len(PROMPTS)
    for request_id in early.state.finished:
        request = early.state.requests[request_id]
        sequence = early.state.sequences[request.seq_ids[0]]
        assert request.finish_reason == "length"
        assert request.metrics.finished_time is not None
        assert request.metrics.model_forward_time is None, "unknown is not zero"
        assert sequence.text == example["ANSWER"]
        assert sequence.block_table == []


def assert_shows(session: Session, engine: Any) -> None:
    with session.lock:
        state = session.state
        assert state.step == engine.number
        unfinished = [request for request in state.requests if request not in state.finished]
        assert unfinished == [expected["name"] for expected in engine.requests.values()]
        for seq_id, expected in engine.requests.items():
            shown = state.sequences[seq_id]
            assert (shown.request_id, shown.status) == (expected["name"], expected["status"])
            assert (shown.text, shown.block_table) == (expected["text"], expected["table"])
            assert shown.output_token_ids == [ord(letter) for letter in expected["text"]]
            assert shown.num_prompt_tokens == expected["length"]
            assert shown.num_computed_tokens == expected["computed"]
        assert state.num_by_status[SequenceStatus.RUNNING] == len(engine.running)
        assert state.num_by_status[SequenceStatus.WAITING] == len(engine.waiting)


def test_runs_without_seqtop_and_check_finds_nothing(endpoint: str) -> None:
    reports: list[Report] = []

    def check() -> None:
        ended = threading.Event()
        reports.append(check_protocol(endpoint, ended=ended, duration=30.0, timeout=SECONDS))

    checking = threading.Thread(target=check)
    checking.start()
    # An import of a module that is `None` in `sys.modules` fails.
    program = (
        "import runpy, sys; sys.modules['seqtop'] = sys.modules['msgspec'] = None;"
        f" runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    subprocess.run([sys.executable, "-c", program, endpoint, "8"], check=True, timeout=SECONDS)
    checking.join()
    (report,) = reports
    assert report.as_text().endswith("0 findings")
    assert report.findings == []
    assert report.num_steps > 50
    assert report.num_snapshots
