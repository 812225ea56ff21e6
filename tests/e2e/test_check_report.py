"""The report of `seqtop check`: what a broken stream leads to, in each of its forms."""

import json
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

from hand_driven import HandDrivenEngine, arrival, engine_info, step
from waiting import wait_until

from seqtop.checking import Report, check_live, check_recording
from seqtop.recording import RecordingWriter
from seqtop.state import EngineState
from seqtop.state.checks import RULES
from seqtop.wire import codec
from seqtop.wire.messages import EngineStopped, Event

BROKEN: tuple[Event, ...] = (
    engine_info(),
    arrival(1),
    step(0),
    step(1),
    arrival(1),  # announced twice
)


def record(path: Path, events: tuple[Event, ...]) -> None:
    state = EngineState()
    with RecordingWriter(path) as writer:
        writer.restore("one", -1, state)
        for number, event in enumerate(events):
            state.apply(event)
            writer.append(number, codec.encode(event), event, state)


def test_recording_with_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record(path, BROKEN)
    report = check_recording(path)
    assert [finding.rule for finding in report.findings] == ["unknown"]
    assert (report.num_events, report.num_steps, report.num_gaps) == (5, 2, 0)
    assert "request req-1 arrived twice" in report.as_text()
    assert report.as_text().endswith("2 steps, 5 events, 0 gaps, 1 findings")
    assert json.loads(report.as_json())["counts"] == {"unknown": 1}
    suite = ET.fromstring(report.as_junit())
    assert suite.get("failures") == "1"
    assert {case.get("name") for case in suite} == RULES.keys()
    (failed,) = suite.findall("testcase[failure]")
    assert failed.get("name") == "unknown"


def test_live_engine_until_it_stops(endpoint: str) -> None:
    reports: list[Report] = []

    def check() -> None:
        reports.append(check_live(endpoint, ended=threading.Event(), duration=None, timeout=10.0))

    with HandDrivenEngine(endpoint) as engine:
        checking = threading.Thread(target=check)
        checking.start()
        engine.await_viewer()
        engine.answer()
        for event in (*BROKEN, EngineStopped(time=500.0)):
            engine.send(event)
        wait_until(lambda: not checking.is_alive())
    (report,) = reports
    assert report.counts == {"unknown": 1}
    assert report.num_steps == 2


def test_sentences_cannot_move_the_cursor(tmp_path: Path) -> None:
    nasty = arrival(1)
    nasty.request_id = "a\x1b[2J\n"
    path = tmp_path / "run.seqtop"
    record(path, (engine_info(), nasty, nasty))
    text = check_recording(path).as_text()
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == 2
