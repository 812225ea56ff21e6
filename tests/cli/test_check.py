"""`seqtop check`, against running engines and publishers that make mistakes."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.sequence import SequenceStatus
from seqtop.wire import codec, frames
from seqtop.wire.messages import (
    EngineStopped,
    Event,
    Refused,
)
from tests.support import events
from tests.support.broken_recordings import RIGHT, record
from tests.support.commands import SEQTOP, assert_one_sentence, run, run_here
from tests.support.events import arrival, engine_info, stats, step
from tests.support.hand_driven import HandDrivenEngine


def test_check_of_a_running_engine_finds_nothing(engine: str) -> None:
    done = run(*SEQTOP, "check", engine, "--duration", "1")
    assert done.returncode == 0, done.stdout
    assert "0 findings" in done.stdout
    assert ": 0 steps" not in done.stdout


def test_protocol_of_a_running_engine_has_no_mistake(
    engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.checks.protocol._ROUND_SECONDS", 0.2)
    done = run_here(capsys, "check", "--protocol", engine, "--duration", "2", "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["num_snapshots"] >= 2
    assert report["num_steps"] > 0
    assert main(["check", "--protocol", "run.seqtop"]) == 2


def test_check_of_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_here(capsys, "check", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert_one_sentence(done, 1, "no engine answered")
    assert_one_sentence(run_here(capsys, "check", "/nonexistent"), 2, "/nonexistent")


STEP: list[Any] = msgspec.msgpack.decode(codec.encode(step(7)))


def _step(index: int, value: Any) -> bytes:
    """A step one of whose elements is another."""
    return msgspec.msgpack.encode([*STEP[:index], value, *STEP[index + 1 :]])


@contextmanager
def driven(endpoint: str, drive: Callable[[HandDrivenEngine], None]) -> Iterator[None]:
    """A publisher that a thread drives, once a viewer has subscribed."""
    failures: list[BaseException] = []

    def run_() -> None:
        try:
            engine.await_viewer()
            drive(engine)
        except BaseException as error:  # noqa: BLE001 - asserted below
            failures.append(error)

    with HandDrivenEngine(endpoint) as engine:
        thread = threading.Thread(target=run_)
        thread.start()
        yield
        thread.join()
    assert not failures, failures


def send_unreadable(engine: HandDrivenEngine, payload: bytes) -> None:
    engine.send_frames(frames.pack("one", engine.next_number, payload))
    engine.next_number += 1
    engine.answer()  # the viewer asks for a snapshot, since it cannot apply the message


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (msgspec.msgpack.encode(["RequestArrived", "req-9"]), "at least"),
        (_step(1, "seven"), "step: Expected `int`, got `str`"),
        (_step(9, [["req-1", "blocks", 3]]), "wait_reasons[0].cause: Invalid enum value 'blocks'"),
        (b"\xc1 not msgpack", "cannot decode Event"),
        (msgspec.msgpack.encode({"step": 1}), "Expected `array`, got `object`"),
    ],
    ids=[
        "missing field",
        "wrong type",
        "bad enum",
        "no msgpack",
        "map for array",
    ],
)
def test_unreadable_message_is_a_finding(
    payload: bytes, reason: str, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        for event in (engine_info(), arrival(1), step(0)):
            engine.send(event)
        send_unreadable(engine, payload)
        engine.send(step(1))
        engine.send(EngineStopped(time=500.0))

    with driven(endpoint, drive):
        assert main(["check", endpoint, "--json", "--timeout", "60"]) == 1
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert (finding["rule"], finding["severity"], finding["step"]) == ("unreadable", "error", 0)
    assert finding["message"].startswith("message 3: cannot decode Event: ")
    assert reason in finding["message"]
    assert (report["num_gaps"], report["num_steps"]) == (1, 2)


def test_an_event_of_an_unknown_name_is_counted_and_skipped(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        for event in (engine_info(), arrival(1), step(0)):
            engine.send(event)
        farewell = msgspec.msgpack.encode(["Farewell", 1.0])
        engine.send_frames(frames.pack("one", engine.next_number, farewell))
        engine.next_number += 1
        engine.send(step(1))
        engine.send(EngineStopped(time=500.0))

    with driven(endpoint, drive):
        assert main(["check", endpoint, "--json", "--timeout", "60"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["findings"], report["num_gaps"], report["num_steps"]) == ([], 0, 2)
    assert report["num_unknown"] == 1


def test_stream_without_a_readable_step_does_not_pass(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        for _ in range(3):
            send_unreadable(engine, _step(1, None))
        engine.send(EngineStopped(time=500.0))

    with driven(endpoint, drive):
        assert main(["check", endpoint, "--json", "--timeout", "60"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["counts"], report["complete"]) == ({"unreadable": 3}, False)
    assert report["problem"].endswith("has sent no step: there is nothing to check")


def test_check_ends_when_the_engine_stops_while_messages_are_missing(
    endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snapshots are refused, so the gap cannot be healed."""

    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        engine.send(engine_info())
        engine.send(step(0))
        engine.send(step(1), lose=True)
        engine.send(step(2))
        engine.answer(Refused(error="no snapshots today"))
        engine.send(EngineStopped(time=500.0, reason="maintenance"))

    with driven(endpoint, drive):
        assert main(["check", endpoint, "--timeout", "60"]) == 3
    said = capsys.readouterr()
    assert said.err == "seqtop: the end of the stream was not read: maintenance\n"
    assert "1 steps, 2 events, 1 gaps, 0 findings; not all could be checked" in said.out


def test_gates_of_a_running_engine(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tmp_path / "before.seqtop"
    record(before, RIGHT)

    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        for event in (engine_info(), arrival(1), step(0)):
            engine.send(event)
        preempted = [events.preemption("req-1", lost=4)]
        engine.send(step(1, preemptions=preempted, stats=stats(num_preemptions=3)))
        engine.send(EngineStopped(time=500.0))

    command = ["check", endpoint, "--timeout", "60", "--duration", "2m", "--json"]
    gates = ["--fail-if", "preemptions>2", "--slo", "ttft=1us", "--baseline", str(before)]
    with driven(endpoint, drive):
        assert main([*command, *gates]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"] == {"condition": 1, "objective": 1, "regression": 1}
    results = {own["gate"]: (own["result"], own["step"]) for own in report["gates"]}
    assert results["preemptions>2"] == ("missed", 1)
    assert results["TTFT ≤ 1 µs"] == ("missed", 1)
    assert results["preemptions within 10%"] == ("missed", 1)
    assert "first in step 1, preemption: " in report["verdict"]
    assert report["baseline"] == str(before)


def _contradictory(engine: HandDrivenEngine) -> list[Any]:
    engine.state.apply(arrival(1))
    (whole,) = engine.snapshot().requests
    return engine.pack_reply(codec.encode(engine.snapshot(requests=[whole, whole])))


def _malformed(engine: HandDrivenEngine) -> list[Any]:
    return engine.pack_reply(b"\x93\xa8Snapshot\x02\x03")


def _of_another_version(engine: HandDrivenEngine) -> list[Any]:
    return [b"seqtop/99/one", *engine.pack_reply(codec.encode(engine.snapshot()))[1:]]


def _with_a_short_info(engine: HandDrivenEngine) -> list[Any]:
    fields = msgspec.msgpack.decode(codec.encode(engine.snapshot()))
    fields[6] = ["EngineInfo", "test"]
    return engine.pack_reply(msgspec.msgpack.encode(fields))


def _with_too_many_frames(engine: HandDrivenEngine) -> list[Any]:
    return [*engine.pack_reply(codec.encode(engine.snapshot())), b"more"]


def _answer_until_gone(engine: HandDrivenEngine, reply: list[Any]) -> None:
    """Gives the same reply to every request until the viewer unsubscribes."""
    while not engine.live.poll(20):
        if engine.router.poll(0):
            identity, _ = engine.router.recv_multipart()
            engine.router.send_multipart([identity, *reply])


@pytest.mark.parametrize(
    ("command", "make", "reason"),
    [
        ("check", _contradictory, "snapshot: request 'req-1' is in it twice"),
        ("show", _contradictory, "snapshot: request 'req-1' is in it twice"),
        ("check", _malformed, "cannot decode "),
        ("check", _of_another_version, "version 99 of the seqtop protocol"),
        ("check", _with_a_short_info, "info"),
        ("check", _with_too_many_frames, "got 4 frames"),
    ],
)
def test_snapshot_that_cannot_be_used_is_explained(
    command: str,
    make: Callable[[HandDrivenEngine], list[Any]],
    reason: str,
    endpoint: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def drive(engine: HandDrivenEngine) -> None:
        _answer_until_gone(engine, make(engine))

    with driven(endpoint, drive):
        assert main([command, endpoint, "--timeout", "1"]) == 1
    sentence = rf"seqtop: the engine at {endpoint} answered, but its snapshot cannot be used: .*"
    assert re.match(sentence + re.escape(reason), capsys.readouterr().err)


def test_wrong_figures_are_findings(endpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures that can be read and cannot be true."""
    strange = arrival(1)
    strange.seq_ids = [-4, 2**63 + 5]
    update = events.update(-4, SequenceStatus.RUNNING, 0, tokens=[2**40])
    last = step(3, stats=stats())
    last.time = float("nan")
    wrong: list[Event] = [
        engine_info(),
        strange,
        step(5, sequences=[update]),
        last,
        EngineStopped(time=500.0),
    ]

    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        for event in wrong:
            engine.send(event)

    with driven(endpoint, drive):
        assert main(["check", endpoint, "--timeout", "60"]) == 1
    said = capsys.readouterr().out
    for sentence in (
        "id-range: sequence id -4 is not between 0 and 9223372036854775807",
        "id-range: sequence id 9223372036854775813 is not between 0 and",
        "id-range: token id 1099511627776 is not between 0 and 2147483647",
        "step-number: step 3 follows step 5",
        "not-finite: time is nan",
    ):
        assert sentence in said


def test_show_names_what_it_could_not_read(
    endpoint: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def drive(engine: HandDrivenEngine) -> None:
        engine.answer()
        send_unreadable(engine, _step(1, "seven"))
        engine.send(EngineStopped(time=500.0))

    with driven(endpoint, drive):
        assert main(["show", endpoint, "--follow", "--json", "--timeout", "60"]) == 3
    assert capfdbinary.readouterr().err.startswith(
        b"seqtop: cannot read 1 message: message 0: cannot decode Event: step: Expected `int`"
    )


@pytest.mark.parametrize(
    ("threshold", "sentence"),
    [
        ("no_progress_step=3", "no threshold 'no_progress_step', did you mean no_progress_steps?"),
        ("thrash_preemptions=0", "the threshold thrash_preemptions is 0, not a positive number"),
        ("thrash_preemptions=many", "'many' is not a number"),
        ("thrash_preemptions", "'thrash_preemptions' has no value"),
    ],
)
def test_threshold_that_does_not_exist(
    threshold: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "x.seqtop", "--threshold", threshold])
    assert sentence in capsys.readouterr().err
