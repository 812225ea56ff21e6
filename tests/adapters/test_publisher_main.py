"""The publisher's process: its keys and its redaction."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import zmq

from seqtop.adapters.observations import (
    AllRequests,
    Arrived,
    Counts,
    CurrentRequest,
    EngineStopping,
)
from seqtop.adapters.publisher_main import ObservationReceiver, publish
from seqtop.adapters.publisher_process import encode
from seqtop.adapters.translate import Translator, engine_info
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.hook import follow
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.transport.connection import ConnectionState
from seqtop.transport.curve_keys import create_pair, viewer_keys
from seqtop.transport.publisher import MessagePublisher
from seqtop.transport.publisher_process import EngineConnection, address_in
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import Request, Scheduler, step
from tests.support.waiting import SECONDS, wait_until

SECRET_ID = 0x5EC2E711
"""A token id whose bytes are found nowhere else."""


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(num_gpu_blocks=17)
    yield scheduler
    scheduler.shutdown()


class PayloadCollector:
    """Keeps every payload as it came."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def note(self, change: StateChange) -> None:
        if change.event is not None:
            self.payloads.append(bytes(change.payload))


def test_holders_of_keys_are_let_in_alone(
    scheduler: Scheduler, endpoint: str, tmp_path: Path
) -> None:
    server, server_secret = create_pair(tmp_path / "server")
    client, client_secret = create_pair(tmp_path / "client")
    settings = PublisherSettings(
        bind=endpoint, server_secret_key=str(server_secret), authorized_clients=str(client)
    )
    assert follow(scheduler, settings)
    keys = viewer_keys(str(server), client_secret)
    with Session(endpoint, keys=keys) as invited, Session(endpoint) as refused:
        assert invited.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert refused.wait_for(ConnectionState.REFUSED, timeout=SECONDS)
        scheduler.add_request(Request("one-00000000", [1, 2, 3], 2))
        step(scheduler)
        wait_until(lambda: invited.state.step == 0)
        assert not refused.state.requests


@pytest.mark.parametrize("redact", [True, False])
def test_texts_and_token_ids_stay_where_they_are(
    redact: bool, scheduler: Scheduler, endpoint: str
) -> None:
    assert follow(scheduler, PublisherSettings(bind=endpoint, redact=redact))
    collector = PayloadCollector()
    session = Session(endpoint)
    session.add_listener(collector.note)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        scheduler.add_request(Request("one-00000000", [SECRET_ID] * 4, 3))
        num_steps = 0
        while scheduler.requests:
            output = scheduler.schedule()
            scheduler.update_from_output(output, dict.fromkeys(scheduler.requests, SECRET_ID))
            num_steps += 1
        wait_until(lambda: "one" in session.state.finished)
        assert session.state.info is not None
        assert session.state.info.redacted is redact
        (sequence,) = session.state.sequences.values()
        assert len(sequence.output_token_ids) == 3  # their number is published
    forms = [SECRET_ID.to_bytes(8, "little"), msgspec.msgpack.encode(SECRET_ID)]
    published = [form for form in forms for payload in collector.payloads if form in payload]
    assert bool(published) is not redact


def test_an_observation_that_cannot_be_used_is_a_gap_until_the_engine_sends_all(
    endpoint: str, tmp_path: Path
) -> None:
    started, _ = describe(Scheduler(), PublisherSettings(bind=endpoint))
    context = zmq.Context()
    engine = context.socket(zmq.PAIR)
    engine.rcvtimeo = int(1000 * SECONDS)
    engine.connect(address_in(str(tmp_path)))
    arrived = Arrived("one-00000000", 5.0, "WAITING", 0, 3, [1, 2, 3], None)
    current = CurrentRequest(arrived, 4, [7, 8], ([1],), is_running=True, was_scheduled=True)
    ended = threading.Event()

    def publish_all() -> None:
        with EngineConnection(str(tmp_path), ended) as connection:
            publisher = MessagePublisher(
                endpoint, engine_info(started), EngineState(), repairs=True
            )
            publish(publisher, Translator(started), ObservationReceiver(connection))

    thread = threading.Thread(target=publish_all)
    thread.start()
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.send(encode(arrived))
        wait_until(lambda: "one" in session.state.requests)
        engine.send(b"\xc1 is no observation")
        assert engine.recv() == b"", "it asks for everything"
        engine.send(encode(AllRequests(6.0, [current], Counts(0, 20, 0, 3, 0))))
        wait_until(lambda: bool(session.state.sequences[0].output_token_ids))
        (sequence,) = session.state.sequences.values()
        assert list(sequence.output_token_ids) == [7, 8]
        assert (sequence.num_computed_tokens, sequence.block_table) == (4, [1])
        assert sequence.status is SequenceStatus.RUNNING
        assert session.connection.num_missed > 0
        engine.send(encode(EngineStopping(7.0, "the test is over")))
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
    thread.join(SECONDS)
    assert not thread.is_alive()
    context.destroy(linger=0)


@contextmanager
def recorded(program: str) -> Iterator[subprocess.Popen[str]]:
    """Runs an engine's program, whose flight recorder has begun."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while line := process.stderr.readline():
            if "the flight recorder of" in line:
                break
        yield process


def test_flight_record_has_the_stacks_of_a_vllm_that_hangs(endpoint: str, tmp_path: Path) -> None:
    options = "--threshold no_progress_seconds=0.5"
    program = f"""
import sys, time
from types import SimpleNamespace
sys.modules["vllm"] = SimpleNamespace(__version__="0.33.0")
from seqtop.adapters.vllm.hook import follow
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import Request, Scheduler, step

scheduler = Scheduler(num_gpu_blocks=17)
follow(scheduler, PublisherSettings(
    bind={endpoint!r}, flight_recorder={str(tmp_path)!r}, flight_recorder_options={options!r}
))
sys.stdin.readline()
scheduler.add_request(Request("one-00000000", [1, 2, 3], 9))
step(scheduler)

def wait_for_a_kernel():
    sys.stdin.readline()

wait_for_a_kernel()
"""
    with recorded(program) as process:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(lambda: any(tmp_path.glob("*-no-progress.json")))
        (record,) = tmp_path.glob("*-no-progress.json")
        verdict = json.loads(record.read_text())
        process.kill()
        process.communicate(timeout=SECONDS)
    assert any("in wait_for_a_kernel" in line for line in verdict["stacks"]), verdict


def test_flight_recorder_says_that_vllm_was_killed(endpoint: str, tmp_path: Path) -> None:
    program = f"""
import sys
from types import SimpleNamespace
sys.modules["vllm"] = SimpleNamespace(__version__="0.33.0")
from seqtop.adapters.vllm.hook import follow
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import step
from tests.support.fake_vllm import Request, Scheduler

scheduler = Scheduler(num_gpu_blocks=17)
follow(scheduler, PublisherSettings(bind={endpoint!r}, flight_recorder={str(tmp_path)!r}))
sys.stdin.readline()
scheduler.add_request(Request("one-00000000", [1, 2, 3], 9))
step(scheduler)
sys.stdin.readline()
"""
    with recorded(program) as process:
        assert process.stdin is not None
        with Session(endpoint) as session:
            session.await_engine(SECONDS)
            process.stdin.write("\n")
            process.stdin.flush()
            wait_until(lambda: session.state.step >= 0)
        process.kill()
        _, log = process.communicate(timeout=SECONDS)
    (path,) = tmp_path.glob("*.json")
    verdict = json.loads(path.read_text())
    assert (verdict["cause"], verdict["request_ids"]) == ("failed", ["one"])
    ended = "the engine's process has ended without announcing it; 1 request unfinished"
    assert verdict["message"].startswith(ended)
    assert f"seqtop: failed: {verdict['message']}; recorded in" in log
