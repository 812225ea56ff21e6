"""Publishers that cannot make a message, with real sockets: viewers are told why."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from seqtop.adapters.observations import (
    AllRequests,
    Arrived,
    Counts,
    CurrentRequest,
    Scheduled,
    Stepped,
)
from seqtop.adapters.publisher_process import ObservationSender
from seqtop.checks.finding import Finding
from seqtop.checks.live_checker import LiveChecker
from seqtop.checks.protocol import ProtocolChecker
from seqtop.checks.stream_checker import StreamChecker
from seqtop.live.session import Session
from seqtop.publish import Adapter, EngineDescription, Publisher, RequestDescription, SequenceStatus
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.wire import codec
from seqtop.wire.snapshot import RequestSnapshot, Snapshot
from tests.support.events import arrival, engine_info
from tests.support.observed_engine import an_engine_started
from tests.support.waiting import SECONDS, wait_until

SECRET = "the secret of the client"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in this process waits a second before it repairs a stream, or checks it again."""
    monkeypatch.setattr("seqtop.transport.publisher._SECONDS_BETWEEN_REPAIRS", 0.05)
    monkeypatch.setattr("seqtop.transport.publisher_process._CHECK_SECONDS", 0.05)
    monkeypatch.setattr("seqtop.checks.protocol._ROUND_SECONDS", 0.05)


class OneRequest(Adapter[int]):
    """An adapter of an engine with one request, whose description a test changes."""

    def __init__(self) -> None:
        self.changes: dict[str, Any] = {}
        self.error: Exception | None = None

    def describe_engine(self) -> EngineDescription:
        return EngineDescription(
            engine="one 1.0",
            model="m",
            block_size=4,
            num_gpu_blocks=9,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=64,
        )

    def requests(self) -> dict[str, int]:
        return {"a": 0}

    def num_free_blocks(self) -> int:
        return 9

    def describe_request(self, request: int) -> RequestDescription:
        if self.error is not None:
            raise self.error
        description = RequestDescription(
            status=SequenceStatus.WAITING,
            token_ids=[*range(8)],
            num_prompt_tokens=8,
            num_computed_tokens=0,
            block_table=[],
            wait_cause="unknown",
        )
        return dataclasses.replace(description, **self.changes)


@contextmanager
def checking(checker: ProtocolChecker) -> Iterator[None]:
    """Checks until the context ends."""
    ended = threading.Event()
    thread = threading.Thread(target=checker.run, args=(ended, None, SECONDS))
    thread.start()
    yield
    ended.set()
    thread.join()


def found(checker: StreamChecker) -> list[Finding]:
    return [located.finding for located in checker.findings()]


def step_until(publisher: Publisher, condition: Callable[[], bool]) -> None:
    """Publishes steps until a condition holds."""

    def holds() -> bool:
        with publisher.step():
            pass
        return condition()

    wait_until(holds)


class UnprintableError(Exception):
    """An exception that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "a prompt's length": ({"num_prompt_tokens": 7}, "request 'a' has 7 prompt tokens, and had 8"),
    "a text for a length": (
        {"num_prompt_tokens": SECRET, "token_ids": [*range(8)]},
        "request 'a' has num_prompt_tokens of the type str",
    ),
    "a cause": (
        {"wait_cause": "busy"},
        "request 'a' has the wait_cause 'busy': there are no_blocks, token_budget, seq_limit",
    ),
    "an object for a cause": (
        {"wait_cause": [SECRET]},
        "request 'a' has the wait_cause of the type list: there are no_blocks",
    ),
    "a number of tokens": ({"token_ids": [1, 2]}, "request 'a' has 2 tokens, and had 8"),
}


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_bad_field_of_an_adapter_is_named_once_and_with_the_words_of_the_log(
    name: str, redact: bool, endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    changes, sentence = MISTAKES[name]
    adapter, checker = OneRequest(), ProtocolChecker(endpoint)
    settings = PublisherSettings(bind=endpoint, redact=redact)
    with Publisher(adapter, settings) as publisher:
        with checking(checker):
            step_until(publisher, lambda: checker.num_steps > 0)
            adapter.changes = changes
            with publisher.step():
                pass
            adapter.changes = {}
            step_until(publisher, lambda: checker.num_gaps > 0 and not checker.ends_in_gap)
        assert publisher.num_errors == 1
    findings = found(checker)
    assert [finding.rule for finding in findings] == ["not-published"]
    assert findings[0].message.startswith(sentence)
    assert findings[0].message.endswith(" (1 message so far)")
    assert findings[0].message.removesuffix(" (1 message so far)") in caplog.text
    assert SECRET not in findings[0].message


@pytest.mark.parametrize(
    ("error", "shown", "public"),
    [
        (KeyError(SECRET), f"KeyError: '{SECRET}'", "KeyError"),
        (RuntimeError("\ud800\x1b[2J\u3164" * 5_000), "RuntimeError: �␛[2J", "RuntimeError"),
        (UnprintableError(), "UnprintableError (", "UnprintableError"),
    ],
)
@pytest.mark.parametrize("redact", [False, True])
def test_the_text_of_an_exception_is_bounded_and_private(
    error: Exception,
    shown: str,
    public: str,
    redact: bool,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The adapter fails at every step from then on; its author alone is shown what it says."""
    monkeypatch.setattr("seqtop.publish.publisher._log.disabled", True)  # pytest needs UTF-8
    adapter, session = OneRequest(), Session(endpoint)
    checker, authors = LiveChecker(session), ProtocolChecker(endpoint)
    settings = PublisherSettings(bind=endpoint, redact=redact)
    with (
        Publisher(adapter, settings) as publisher,
        checking(authors),
        checker.running(),
        session,
    ):
        step_until(publisher, lambda: session.state.step >= 0 < authors.num_steps)
        adapter.error = error
        step_until(publisher, lambda: "not-published" in checker.counts())
        wait_until(lambda: "not-published" in authors.counts())
        event = session.state.not_published
        assert event is not None
        assert len(event.reason) + len(event.detail) < 1_100
        assert event.reason == public
        assert bool(event.detail) == (not redact and not isinstance(error, UnprintableError))
    assert found(checker)[0].message.startswith(f"{public} (")
    assert found(authors)[0].message.startswith(f"{public} (" if redact else shown)
    assert not {"unreadable", "frames"} & {*checker.counts(), *authors.counts()}


def test_a_recorder_that_redacts_removes_the_text_of_an_exception(endpoint: str) -> None:
    adapter = OneRequest()
    with Publisher(adapter, endpoint) as publisher, Session(endpoint, redact=True) as session:
        step_until(publisher, lambda: session.state.step >= 0)
        adapter.error = KeyError(SECRET)
        step_until(publisher, lambda: session.state.not_published is not None)
        assert SECRET.encode() not in codec.encode(session.state)
        late = Session(endpoint)
        with late:
            late.await_engine(SECONDS)
            assert late.state.not_published is not None, "it is in the snapshot"
            assert late.state.not_published.detail == repr(SECRET)


def test_reasons_are_sent_once_a_second(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqtop.transport.publisher._SECONDS_BETWEEN_REASONS", 3_600.0)
    monkeypatch.setattr("seqtop.transport.publisher._SECONDS_BETWEEN_REPAIRS", 3_600.0)
    adapter, session = OneRequest(), Session(endpoint)
    checker = LiveChecker(session)
    with Publisher(adapter, endpoint) as publisher, checker.running(), session:
        step_until(publisher, lambda: session.state.step >= 0)
        adapter.error = RuntimeError("not now")
        for _ in range(100):
            with publisher.step():
                pass
        step_until(publisher, lambda: session.state.not_published is not None)
        first = session.state.not_published
        assert first is not None
        assert first.num_messages == 1 < publisher.num_errors
        wait_until(lambda: "not-published" in checker.counts())
        assert checker.counts()["not-published"] == 1
        monkeypatch.setattr("seqtop.transport.publisher._SECONDS_BETWEEN_REASONS", 0.0)
        step_until(publisher, lambda: session.state.not_published is not first)
        assert session.state.not_published.num_messages > 100


@contextmanager
def silent(endpoint: str) -> Iterator[MessagePublisher]:
    """A publisher that sends no heartbeats."""
    info = replace(engine_info(), heartbeat_interval=3_600.0)
    with MessagePublisher(endpoint, info, EngineState(), repairs=True) as publisher:
        yield publisher


def test_a_gap_before_the_first_message_that_a_checker_reads(endpoint: str) -> None:
    checker = ProtocolChecker(endpoint)
    with silent(endpoint) as publisher:
        publisher.publish(arrival(1))
        with checking(checker):
            wait_until(lambda: checker.num_snapshots > 0)
            publisher.count_lost(1, "the queue was full")
            publisher.publish(Snapshot(time=1.0, step=-1, stats=None, requests=[]))
            publisher.publish(arrival(2))
            wait_until(lambda: checker.num_gaps > 0 and not checker.ends_in_gap)
    assert [finding.message for finding in found(checker)] == ["number 3 follows 1"]


def test_a_state_that_the_publisher_cannot_read_again_is_named(endpoint: str) -> None:
    checker = ProtocolChecker(endpoint)
    request = arrival(1)
    request.priority = "high"  # type: ignore[assignment]
    state = Snapshot(time=1.0, step=-1, stats=None, requests=[RequestSnapshot(request, [])])
    with silent(endpoint) as publisher, checking(checker):
        wait_until(lambda: checker.num_snapshots > 0)
        publisher.publish(request)
        wait_until(publisher.needs_snapshot)
        publisher.publish(state)
        wait_until(publisher.needs_snapshot)
        publisher.publish(Snapshot(time=1.0, step=-1, stats=None, requests=[]))
        publisher.publish(arrival(2))
        wait_until(lambda: checker.num_gaps > 0 and not checker.ends_in_gap)
        # The first gap may have ended before the second is announced.
        wait_until(lambda: len(found(checker)) == 2)
    findings = found(checker)
    assert [finding.rule for finding in findings] == ["unreadable", "not-published"]
    assert "priority: Expected `int`, got `str`" in findings[0].message
    assert "requests[0].arrival.priority: Expected `int`, got `str` (2 messages so far)" in (
        findings[1].message
    )


COUNTS = Counts(1, 12, None, 0, 0)


def _arrived(num_prompt_tokens: Any) -> Arrived:
    return Arrived("a", time.time(), "WAITING", 0, num_prompt_tokens, [1, 2, 3], None)


def _step(cause: str) -> Stepped:
    now = time.time()
    return Stepped(
        scheduled=[Scheduled(now, wait_reasons=[("a", cause)])],
        start_time=now,
        scheduler_time=0.0,
        execute_time=0.0,
        time=now,
        num_scheduled_tokens={},
        output_ids=[],
        output_token_ids=[],
        running=[],
        num_computed_tokens=[],
        counts=COUNTS,
    )


@pytest.mark.parametrize(
    ("redact", "num_prompt_tokens", "cause", "rule", "sentence"),
    [
        (False, 99, "no_blocks", "impossible-figure", "is 99, and the prompt has 3 tokens"),
        (True, -2, "no_blocks", "impossible-figure", "num_prompt_tokens is -2"),
        (False, "3", "no_blocks", "not-published", "num_prompt_tokens: Expected `int`, got `str`"),
        (True, "3", "no_blocks", "not-published", "num_prompt_tokens: Expected `int`, got `str`"),
        (False, 3, "busy", "unreadable", "wait_reasons[0].cause: Invalid enum value 'busy'"),
        (True, 3, "busy", "unreadable", "wait_reasons[0].cause: Invalid enum value 'busy'"),
    ],
)
def test_a_bad_field_is_named_through_the_process_of_a_publisher(
    redact: bool, num_prompt_tokens: Any, cause: str, rule: str, sentence: str, endpoint: str
) -> None:
    checker = ProtocolChecker(endpoint)
    sender = ObservationSender(endpoint, PublisherSettings(bind=endpoint, redact=redact))
    sender.send(an_engine_started())
    with checking(checker):
        wait_until(lambda: checker.num_snapshots > 0)
        sender.send(_arrived(num_prompt_tokens))
        sender.send(_step(cause))
        wait_until(lambda: rule in checker.counts())

        def repaired() -> bool:
            if sender.wants_all_requests:
                current = CurrentRequest(
                    _arrived(3), 0, [], ([],), is_running=False, was_scheduled=False
                )
                sender.send(AllRequests(time.time(), [current], COUNTS))
            sender.send(_step("no_blocks"))
            return checker.num_steps > 3

        wait_until(repaired)
    sender.close("the test is over")
    errors = [finding for finding in found(checker) if finding.severity == "error"]
    named = next(finding for finding in errors if finding.rule == rule)
    assert sentence in named.message
    assert "frames" not in checker.counts()
