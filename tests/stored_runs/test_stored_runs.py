"""Stored runs of real engines have what they are to show, and no finding, plain or redacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.history import FileStore
from seqtop.wire.messages import Event, RequestFinished, Step
from seqtop.wire.redaction import redact

FOLDER = Path(__file__).parent
RUNS = ("vllm", "vllm-async", "sglang", "transformers", "transformers-samples")


def events_of(name: str) -> list[Event]:
    with FileStore(FOLDER / f"{name}.seqtop") as recording:
        first = recording.at(recording.first)
        assert first.info is not None
        assert not first.requests, "it begins with the engine"
        assert "/" not in first.info.model, "no path of the machine that recorded it"
        events = recording.events(recording.first, recording.last)
        return [first.info, *(event for _, event in events if event is not None)]


def found(events: list[Event]) -> list[Finding]:
    checker = Checker()
    return [*(own for event in events for own in checker.apply(event)), *checker.end()]


@pytest.mark.parametrize("name", RUNS)
def test_nothing_is_found(name: str) -> None:
    assert found(events_of(name)) == []
    assert found([redact(event) for event in events_of(name)]) == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_of_a_mixed_load(name: str) -> None:
    events = events_of(name)
    steps = [event for event in events if isinstance(event, Step)]
    ends = {event.status.name for event in events if isinstance(event, RequestFinished)}
    assert len(steps) > 140
    assert any(step.preemptions for step in steps) is (name != "transformers-samples")
    assert any(step.wait_reasons for step in steps) is (name != "transformers-samples")
    assert any(update.num_cached_tokens for step in steps for update in step.sequences)
    assert {"FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED"} <= ends


def test_each_recording_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.seqtop")} == {*RUNS}
    assert all(path.stat().st_size <= 150_000 for path in FOLDER.glob("*.seqtop"))
