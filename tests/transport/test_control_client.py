"""Commands over real sockets."""

import threading

import pytest

from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.transport import (
    control_client,
)
from seqtop.transport.connection import ControlError
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import (
    Abort,
    Submit,
)
from tests.support.events import engine_info
from tests.support.waiting import SECONDS


def test_submit_and_abort_reach_the_engine_and_its_answer_returns(engine: MessagePublisher) -> None:
    answers: list[object] = []

    def view() -> None:
        with Session(engine.endpoint) as session:
            answers.append(session.submit("Once", SamplingParams(max_tokens=3)))
            with pytest.raises(ControlError, match="no such request"):
                session.abort("req-9")
            answers.append("refused")

    viewer = threading.Thread(target=view)
    viewer.start()
    (submit,) = engine.commands(timeout=SECONDS)
    assert isinstance(submit.command, Submit)
    assert submit.command.prompt == "Once"
    assert submit.command.sampling_params.max_tokens == 3
    submit.accept("req-1")
    (abort,) = engine.commands(timeout=SECONDS)
    assert isinstance(abort.command, Abort)
    abort.refuse("no such request: req-9")
    viewer.join()
    assert answers == ["req-1", "refused"]
    assert engine.commands() == []


def test_control_is_refused_where_the_engine_does_not_grant_it(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(control=False), EngineState()) as engine,
        Session(endpoint) as session,
    ):
        with pytest.raises(ControlError, match="does not accept control"):
            session.submit("x", SamplingParams())
        assert engine.commands() == []


def test_control_without_an_engine_times_out(endpoint: str) -> None:
    with pytest.raises(ControlError, match="did not answer"):
        control_client.request(endpoint, Abort(request_id="x"), timeout=0.05)
