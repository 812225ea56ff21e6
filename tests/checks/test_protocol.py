"""`seqtop check --protocol`: a correct publisher has no finding, and each mistake is named."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
import zmq

from seqtop.checks import protocol
from seqtop.checks.live_report import check_protocol
from seqtop.checks.message_rules import PROTOCOL_RULES
from seqtop.checks.protocol import ProtocolChecker
from seqtop.state import EngineState
from seqtop.wire import codec, frames
from seqtop.wire.errors import WireError
from seqtop.wire.messages import EngineInfo, Event, Refused, Step
from seqtop.wire.snapshot import SnapshotPart
from tests.support.events import engine_snapshot, stats
from tests.support.hand_driven import HandDrivenEngine
from tests.support.random_engine import RandomEngine
from tests.support.stored_run import scripts
from tests.support.waiting import SECONDS, wait_until

Frames = list[frames.Buffer]


@dataclass
class Mistake:
    """The differences of a publisher from a correct one."""

    live: Callable[[int, Frames], list[Frames]] = lambda _, parts: [parts]
    """The messages in place of that of a number."""
    reply: Callable[[Frames], list[Frames]] = lambda parts: [parts]
    """The replies in place of the snapshot."""
    welcomes: bool = True
    pause: Callable[[int], None] = lambda _: None
    """Called before the message of a number."""


class Publisher(HandDrivenEngine):
    """Sends a script. Before each message but the first it answers one request for a snapshot."""

    def __init__(self, endpoint: str, script: list[Event], mistake: Mistake) -> None:
        incarnation = script[0].incarnation if isinstance(script[0], EngineInfo) else ""
        super().__init__(endpoint, incarnation, welcomes=mistake.welcomes)
        self._script, self._mistake = script, mistake
        self._is_ended = False

    def run(self) -> None:
        self.await_viewer()
        for number, event in enumerate(self._script):
            if number:
                self._answer_one()
            self._mistake.pause(number)
            self.send(event)
        while not self._is_ended:
            self._answer_one()

    def end(self) -> None:
        self._is_ended = True

    def send_frames(self, parts: Frames) -> None:
        for changed in self._mistake.live(self.next_number, parts):
            self.live.send_multipart(changed)

    def _answer_one(self) -> None:
        """Waits for a request; meanwhile it reads subscriptions."""
        poller = zmq.Poller()
        poller.register(self.live, zmq.POLLIN)
        poller.register(self.router, zmq.POLLIN)
        while not self._is_ended:
            ready = dict(poller.poll(20))
            if self.live in ready:
                self.live.recv()
            if self.router in ready:
                viewer, _ = self.router.recv_multipart()
                for parts in self._mistake.reply(self.reply()):
                    self.router.send_multipart([viewer, *parts])
                return


@contextmanager
def publishing(endpoint: str, script: list[Event], mistake: Mistake) -> Iterator[None]:
    with Publisher(endpoint, script, mistake) as publisher:
        thread = threading.Thread(target=publisher.run)
        thread.start()
        yield
        publisher.end()
        thread.join()


@pytest.fixture
def checker(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> ProtocolChecker:
    """A checker that joins again at once."""
    monkeypatch.setattr(protocol, "_ROUND_SECONDS", 0.0)
    monkeypatch.setattr(protocol, "_SPARE_INTERVALS", 0.5)
    return ProtocolChecker(endpoint)


def run(checker: ProtocolChecker) -> None:
    checker.run(threading.Event(), SECONDS, SECONDS)
    checker.end()


@pytest.mark.parametrize("name", ["one", "two", "long"])
def test_a_correct_publisher_has_no_finding(
    checker: ProtocolChecker, endpoint: str, name: str
) -> None:
    """Each message is followed by a snapshot, on the same connection or on a new one."""
    script = scripts()[name] if name != "long" else list(RandomEngine(4, 60, load=8))
    with publishing(endpoint, script, Mistake()):
        run(checker)
    found = [located.finding for located in checker.findings()]
    assert [finding for finding in found if finding.rule in protocol_rules()] == []
    assert checker.num_snapshots >= len(script) - 3
    assert checker.num_gaps == 0


def test_a_snapshot_may_overtake_the_messages_before_it(
    checker: ProtocolChecker, endpoint: str
) -> None:
    """The first one is compared with nothing: the request for the next shows that it was read."""
    held: list[Frames] = []

    def hold_two(number: int, parts: Frames) -> list[Frames]:
        if number > 2:
            return [parts]
        held.append(parts)
        return held if number == 2 else []

    with publishing(endpoint, SCRIPT, Mistake(live=hold_two)):
        run(checker)
    found = [located.finding for located in checker.findings()]
    assert [finding for finding in found if finding.rule in protocol_rules()] == []
    assert checker.num_gaps == 0


def protocol_rules() -> set[str]:
    return {*PROTOCOL_RULES, "unreadable"}


def _at(number: int, change: Callable[[Frames], list[Frames]]) -> Mistake:
    """Changes one message."""
    return Mistake(live=lambda at, parts: change(parts) if at == number else [parts])


def _payload(number: int, change: Callable[[list[Any]], None]) -> Mistake:
    """Changes the content of one message."""

    def changed(parts: Frames) -> list[Frames]:
        message = msgspec.msgpack.decode(parts[2])
        change(message)
        return [[*parts[:2], msgspec.msgpack.encode(message)]]

    return _at(number, changed)


def _snapshot(change: Callable[[list[Any]], None]) -> Mistake:
    """Changes the content of each snapshot after the first step."""

    def changed(parts: Frames) -> list[Frames]:
        message = msgspec.msgpack.decode(parts[2])
        if message[2] >= 0:
            change(message)
        return [[*parts[:2], msgspec.msgpack.encode(message)]]

    return Mistake(reply=changed)


def _number(change: int) -> Mistake:
    """Changes the number of each reply."""

    def changed(parts: Frames) -> list[Frames]:
        number = int.from_bytes(parts[1], "big") + change
        return [[parts[0], number.to_bytes(8, "big"), parts[2]]]

    return Mistake(reply=changed)


def _set(*path: int | str, value: Any) -> Callable[[list[Any]], None]:
    """Sets an element."""

    def change(message: Any) -> None:
        for part in path[:-1]:
            message = message[part]
        message[path[-1]] = value

    return change


SCRIPT = [*scripts()["one"][:14], scripts()["one"][-1]]
STEP = next(number for number, event in enumerate(SCRIPT) if isinstance(event, Step))
ARRIVAL = 1


def _misspell(message: list[Any]) -> None:
    for metrics in message[7].values():
        metrics["first_token"] = 1.0


NEVER_COMES = {
    "no reply",
    "a snapshot without its parts",
    "a number that never comes",
    "no welcome message",
}
MISTAKES = {
    "another version": (
        _at(2, lambda parts: [[b"seqtop/2/one", *parts[1:]]]),
        ("frames", "version 2 of the seqtop protocol"),
    ),
    "a frame is missing": (_at(2, lambda parts: [parts[:2]]), ("frames", "got 2 frames")),
    "little-endian numbers": (
        Mistake(live=lambda _, parts: [[parts[0], bytes(parts[1])[::-1], parts[2]]]),
        ("frames", "number 72057594037927936 follows 0: numbers are big-endian"),
    ),
    "a number is left out": (_at(5, lambda _: []), ("frames", "number 6 follows 4")),
    "a message is repeated": (
        _at(5, lambda parts: [parts, parts]),
        ("frames", "number 5 follows 5"),
    ),
    "no EngineInfo": (
        _at(0, lambda parts: [[*parts[:2], codec.encode(SCRIPT[ARRIVAL])]]),
        ("frames", "message 0 is RequestArrived in place of EngineInfo"),
    ),
    "another incarnation": (
        _payload(0, _set(2, value="two")),
        ("frames", "EngineInfo.incarnation is 'two', and the topic has 'one'"),
    ),
    "text as bytes": (
        _payload(ARRIVAL, _set(5, value=b"Once")),
        (
            "unreadable",
            "message 1: cannot decode Event: prompt: Expected `str | null`, got `bytes`",
        ),
    ),
    "an unknown event": (
        _payload(ARRIVAL, _set(0, value="RequestCame")),
        ("ignored", "message 1: an event of the unknown name 'RequestCame'"),
    ),
    "an element too many": (
        _payload(STEP, lambda message: message[5][0].extend([None] * 30)),
        ("ignored", f"message {STEP}: sequences[0] has element 21, which nothing reads"),
    ),
    "a misspelled key": (
        _payload(STEP, _misspell),
        ("ignored", f"message {STEP}: metrics[...] has the key 'first_token', which nothing reads"),
    ),
    "no reply": (Mistake(reply=lambda _: []), ("snapshot", "no reply to SnapshotRequest")),
    "an early number": (
        _number(-1),
        ("snapshot", "had come before"),
    ),
    "a late number": (
        _number(1),
        ("snapshot", "the snapshot after message 1: request 'req-1' is missing"),
    ),
    "a number that never comes": (
        _number(1000),
        ("snapshot", "number of the reply is 1001, and the next message of the stream has 2"),
    ),
    "a refusal": (
        Mistake(reply=lambda parts: [[*parts[:2], codec.encode(Refused(error="not now"))]]),
        ("snapshot", "SnapshotRequest was refused: not now"),
    ),
    "a snapshot of other values": (
        _snapshot(_set(4, 0, 1, 0, 0, 6, value=999)),
        ("snapshot", "update.num_computed_tokens of sequence 1 of 'req-1' is 999, and "),
    ),
    "a snapshot of another text": (
        _snapshot(_set(4, 0, 1, 0, 3, value="Twice")),
        ("snapshot", "text of sequence 1 of 'req-1' is str of length 5, and another str of length"),
    ),
    "a snapshot without a request": (
        _snapshot(lambda message: message[4].pop(0)),
        ("snapshot", "request 'req-1' is missing, and there by the messages"),
    ),
    "a snapshot with a request twice": (
        _snapshot(lambda message: message[4].append(message[4][0])),
        ("snapshot", "snapshot: request 'req-1' is in it twice"),
    ),
    "an unreadable snapshot": (
        _snapshot(_set(4, 0, 0, 1, value=7)),
        ("unreadable", "requests[0].arrival.request_id: Expected `str`, got `int`"),
    ),
    "a snapshot without its parts": (
        _snapshot(_set(8, value=True)),
        ("snapshot", "part 0 of a snapshot did not come"),
    ),
    "a snapshot without info": (
        _snapshot(_set(6, value=None)),
        ("snapshot", "Snapshot.info is nil"),
    ),
    "no welcome message": (
        Mistake(welcomes=False),
        ("welcome", "the first message of a new subscription was an event"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named(
    checker: ProtocolChecker, endpoint: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEVER_COMES:
        monkeypatch.setattr(protocol, "_REPLY_SECONDS", 0.1)
    mistake, (rule, sentence) = MISTAKES[name]
    with publishing(endpoint, SCRIPT, mistake):
        run(checker)
    found = [located.finding for located in checker.findings()]
    first = next(finding for finding in found if finding.rule in protocol_rules())
    assert first.rule == rule
    assert sentence in first.message
    assert checker.num_unknown == (name == "an unknown event")


def test_silence_is_named(checker: ProtocolChecker, endpoint: str) -> None:
    def pause(number: int) -> None:
        if number == STEP + 1:
            wait_until(lambda: "silence" in checker.counts())

    with publishing(endpoint, SCRIPT, Mistake(pause=pause)):
        run(checker)
    assert checker.counts()["silence"] >= 1


def test_each_kind_of_viewer_asks_for_each_kind_of_snapshot(
    checker: ProtocolChecker, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []

    def join(ended: threading.Event, connection: object, *, with_parts: bool) -> None:
        asked.append((connection is checker._connections[0], with_parts))
        if len(asked) == 8:
            ended.set()

    monkeypatch.setattr(checker, "_join", join)
    with publishing(endpoint, SCRIPT, Mistake()):
        run(checker)
    assert asked == [(True, True), (False, True), (True, False), (False, False)] * 2


def test_a_mistake_is_reported_once(checker: ProtocolChecker, endpoint: str) -> None:
    number = itertools.count()

    def refuse(parts: Frames) -> list[Frames]:
        return [[*parts[:2], codec.encode(Refused(error=f"reason {next(number) % 2}"))]]

    with publishing(endpoint, SCRIPT, Mistake(reply=refuse)):
        run(checker)
    found = [located.finding for located in checker.findings()]
    assert [own.message for own in found if own.rule == "snapshot"] == [
        "SnapshotRequest was refused: reason 0",
        "SnapshotRequest was refused: reason 1",
    ]


def test_sums_of_times_may_be_rounded() -> None:
    one, other = EngineState(), EngineState()
    one.stats, other.stats = stats(scheduler_time=0.3), stats(scheduler_time=0.1 + 0.2)
    assert [*protocol.differences(one, other)] == []
    other.stats.scheduler_time = 0.30001
    assert [*protocol.differences(one, other)] == [
        protocol.StateDifference("stats.scheduler_time", "", "0.3", "0.30001")
    ]


@pytest.mark.parametrize(
    ("script", "problem"),
    [(SCRIPT, None), ([*SCRIPT[: ARRIVAL + 1], SCRIPT[-1]], "has sent no step: there is nothing")],
)
def test_a_report_on_a_publisher_is_complete_if_it_sent_a_step(
    endpoint: str, script: list[Event], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_ROUND_SECONDS", 0.0)
    with publishing(endpoint, script, Mistake()):
        report = check_protocol(
            endpoint, ended=threading.Event(), duration=SECONDS, timeout=SECONDS
        )
    assert report.complete is (problem is None)
    assert (problem or "") in (report.problem or "")
    assert report.num_steps == sum(isinstance(event, Step) for event in script)
    assert report.num_unknown == 0
    assert report.num_snapshots


def test_a_gap_without_a_snapshot_after_it_is_one_at_the_end(
    checker: ProtocolChecker, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_REPLY_SECONDS", 0.01)
    mistake = Mistake(live=lambda number, parts: [] if number == 5 else [parts], reply=lambda _: [])
    with publishing(endpoint, SCRIPT, mistake):
        run(checker)
    assert (checker.num_gaps, checker.ends_in_gap) == (1, True)
    assert checker.num_events == 5


def test_the_parts_of_a_snapshot_come_in_their_order() -> None:
    whole = engine_snapshot(EngineState())
    whole.has_parts = True
    joining = protocol._Joining("one", 7, whole)
    with pytest.raises(WireError, match="part 1 comes in place of part 0"):
        joining.add_part(SnapshotPart(index=1, is_last=False))
    joining.add_part(SnapshotPart(index=0, is_last=False))
    assert not joining.is_complete
    joining.add_part(SnapshotPart(index=1, is_last=True))
    assert joining.is_complete
    with pytest.raises(WireError, match="part 2 comes in place of part 2"):
        joining.add_part(SnapshotPart(index=2, is_last=False))
