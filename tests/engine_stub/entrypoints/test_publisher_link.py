"""Publishing by a process of its own, and an engine that goes on without it."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from engine_stub.entrypoints.reporting import StepReporter, engine_info
from engine_stub.entrypoints.reports import ArrivalReport, Start, StepReport
from engine_stub.entrypoints.server import EngineServer
from engine_stub.step_record import StepRecord
from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.transport import publisher_process
from seqtop.transport.connection import ConnectionState, ControlError
from seqtop.transport.publisher import PublishError
from tests.support.running import MakeEngine, greedy
from tests.support.shown import assert_same_cache, assert_shows
from tests.support.waiting import SECONDS, wait_until


@contextlib.contextmanager
def linked(engine: LLMEngine, endpoint: str) -> Iterator[PublisherLink]:
    """Publishes an engine at an endpoint."""
    with contextlib.closing(PublisherLink()) as link:
        info = engine_info(engine, engine_id="linked", control=True)
        link.start(Start(info, endpoint, insecure=False, keys=None))
        yield link


def pid_of(link: PublisherLink) -> int:
    return link._process._process.pid


def add(engine: LLMEngine, link: PublisherLink, name: str, params: SamplingParams) -> None:
    for group in engine.add_request(name, "Once upon a time", params):
        link.arrived(group)


def step(engine: LLMEngine, link: PublisherLink) -> StepRecord:
    record = engine.step()
    link.stepped(record)
    link.repair(engine)
    return record


def shows(session: Session, number: int) -> bool:
    with session.lock:
        return session.state.step == number


def test_a_viewer_shows_the_engine_with_forks_preemptions_and_plain_decodes(
    make_engine: MakeEngine, endpoint: str
) -> None:
    engine = make_engine(num_gpu_blocks=12, max_num_seqs=4)
    with Session(endpoint) as session:
        with linked(engine, endpoint) as link:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            for number in range(4):
                add(engine, link, f"plain-{number}", greedy(30))
            add(engine, link, "candidates", greedy(12, logprobs=2))
            add(engine, link, "samples", SamplingParams(n=2, seed=1, max_tokens=9))
            num_preempted = 0
            while engine.has_unfinished_requests():
                record = step(engine, link)
                num_preempted += len(record.preemptions)
                if record.step % 5 == 0:
                    wait_until(lambda: shows(session, record.step))  # noqa: B023
                    assert_shows(session, engine, record)
                    assert_same_cache(session.state, engine)
            assert num_preempted > 0
            assert session.connection.num_missed == 0
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)


def test_columns_have_plain_decodes_and_their_ids_once(make_engine: MakeEngine) -> None:
    reports: list[StepReport] = []

    def take(report: ArrivalReport | StepReport) -> None:
        if isinstance(report, StepReport):
            reports.append(report)

    engine, reporter = make_engine(), StepReporter(take)
    for number in range(3):
        for group in engine.add_request(f"r{number}", [number + 1] * 5, greedy(8)):
            reporter.arrived(group)
    while engine.has_unfinished_requests():
        reporter.stepped(engine.step())
    prefill, first, *rest, last, end = reports
    assert (len(prefill.token_ids), prefill.other_positions) == (0, [0, 1, 2])
    assert first.seq_ids == [0, 1, 2]
    assert len(rest) == 5
    for report in (first, *rest):
        assert len(report.token_ids) == len(report.logprobs) == len(report.texts) == 3
        assert report.step.sequences == report.step.execute.seq_group_metadata_list == []
    assert {report.seq_ids is None for report in rest} == {True}
    assert (last.other_positions, len(last.ended)) == ([0, 1, 2], 3)
    assert end.step.execute is not None
    assert end.step.execute.finished_requests_ids == ["r0", "r1", "r2"]


def test_an_engine_whose_publisher_dies_continues_and_says_so(
    make_engine: MakeEngine,
    endpoint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_process, "_CHECK_SECONDS", 0.0)
    engine = make_engine()
    with linked(engine, endpoint) as link:
        add(engine, link, "before", greedy(200))
        os.kill(pid_of(link), signal.SIGKILL)

        def is_noticed() -> bool:
            step(engine, link)
            return bool(caplog.records)

        wait_until(is_noticed)
        add(engine, link, "after", greedy(5))
        while engine.has_unfinished_requests():
            step(engine, link)
        assert link.commands() == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "nothing is published any more, and the engine continues:"
        " its publisher has ended with exit status -9"
    )


def test_a_publisher_that_stops_for_a_while_gets_the_whole_state(
    make_engine: MakeEngine, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_process, "_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(publisher_process, "MAX_BACKLOG", 20)
    engine = make_engine(num_gpu_blocks=200)
    with linked(engine, endpoint) as link, Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for number in range(3):
            add(engine, link, f"long-{number}", greedy(400))
        first = step(engine, link).step
        wait_until(lambda: shows(session, first))
        os.kill(pid_of(link), signal.SIGSTOP)
        try:
            for number in itertools.count():
                if link.num_dropped:
                    break
                # Large enough that the sockets' own buffers are soon full.
                add(engine, link, f"lost-{number}", greedy(2, stop=["x" * 9_000]))
                link.stepped(engine.step())
        finally:
            os.kill(pid_of(link), signal.SIGCONT)

        def has_a_gap() -> bool:
            step(engine, link)
            return session.connection.num_missed > 0

        wait_until(has_a_gap)
        record = step(engine, link)
        wait_until(lambda: shows(session, record.step))
        assert_shows(session, engine, record)
        assert_same_cache(session.state, engine)


def test_commands_of_viewers_reach_the_engine_and_its_replies_them(
    make_engine: MakeEngine, endpoint: str
) -> None:
    engine = make_engine()
    ended = threading.Event()
    with linked(engine, endpoint) as link, Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        # At this pace the request takes 20 s: it is unfinished when it is aborted.
        paced = EngineServer(engine, link, pace=10)
        server = threading.Thread(target=paced.run, args=(ended.is_set,))
        server.start()
        try:
            request_id = session.submit("Once", greedy(200))
            wait_until(lambda: request_id in session.state.requests)
            session.abort(request_id)
            wait_until(lambda: request_id in session.state.finished)
            with pytest.raises(ControlError, match="there is no unfinished request nobody"):
                session.abort("nobody")
        finally:
            ended.set()
            server.join(SECONDS)


def test_an_endpoint_in_use_is_said_in_a_sentence(make_engine: MakeEngine, endpoint: str) -> None:
    engine = make_engine()
    with (
        linked(engine, endpoint),
        pytest.raises(PublishError, match="is already in use"),
        linked(engine, endpoint),
    ):
        pass
