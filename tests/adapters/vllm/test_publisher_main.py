"""The publisher's process: its keys and its redaction."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from seqtop.adapters.vllm.hook import follow
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.connection import ConnectionState
from seqtop.session import Session
from seqtop.state.listener import StateChange
from seqtop.transport.curve_keys import create_pair, viewer_keys
from tests.adapters.vllm.test_step_builder import step
from tests.support.fake_vllm import Request, Scheduler
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
    settings = AdapterSettings(
        bind=endpoint, server_secret_key=str(server_secret), authorized_clients=str(client)
    )
    assert follow(scheduler, settings)
    keys = viewer_keys(str(server), client_secret)
    with Session(endpoint, keys=keys) as invited, Session(endpoint) as stranger:
        assert invited.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert stranger.wait_for(ConnectionState.REFUSED, timeout=SECONDS)
        scheduler.add_request(Request("one-00000000", [1, 2, 3], 2))
        step(scheduler)
        wait_until(lambda: invited.state.step == 0)
        assert not stranger.state.requests


@pytest.mark.parametrize("redact", [True, False])
def test_texts_and_token_ids_stay_where_they_are(
    redact: bool, scheduler: Scheduler, endpoint: str
) -> None:
    assert follow(scheduler, AdapterSettings(bind=endpoint, redact=redact))
    tape = PayloadCollector()
    session = Session(endpoint)
    session.add_listener(tape.note)
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
        assert len(sequence.output_token_ids) == 3  # how many there are is told
    forms = [SECRET_ID.to_bytes(8, "little"), msgspec.msgpack.encode(SECRET_ID)]
    told = [form for form in forms for payload in tape.payloads if form in payload]
    assert bool(told) is not redact
