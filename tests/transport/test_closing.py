"""A context that will not end keeps nobody."""

import threading

import pytest
import zmq

from seqtop.transport import closing
from tests.support.waiting import wait_until


def closing_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "seqtop-closing"]


def test_a_context_that_cannot_end_is_left_behind(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "_PATIENCE_SECONDS", 0.1)
    context = zmq.Context()
    unread = context.socket(zmq.PUSH)
    unread.connect(endpoint)
    unread.send(b"for nobody yet, and to be delivered before the context ends")
    closing.end(context, linger=-1)
    assert closing_threads()
    with zmq.Context() as other, other.socket(zmq.PULL) as reader:
        reader.bind(endpoint)
        reader.recv()
    wait_until(lambda: not closing_threads())


def test_an_ordinary_one_has_ended_on_return() -> None:
    context = zmq.Context()
    context.socket(zmq.PUB)
    closing.end(context)
    assert context.closed
