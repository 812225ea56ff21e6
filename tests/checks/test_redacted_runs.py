"""Redaction changes nothing that a check judges in whole runs. The tests of rules have mutants."""

from typing import Any

import pytest

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.processing.input_processor import Params
from seqtop.checks.finding import Finding
from seqtop.sequence import SamplingParams
from seqtop.wire import codec
from seqtop.wire.messages import Event
from seqtop.wire.redaction import redact
from tests.support import stored_run
from tests.support.mutants import PayloadCollector, check, events, steps_of


def findings(run: list[Event], *, is_redacted: bool) -> list[Finding]:
    payloads = [codec.encode(redact(event) if is_redacted else event) for event in run]
    return check(events(payloads))


@pytest.mark.parametrize("incarnation", stored_run.scripts())
def test_findings_of_a_redacted_run_are_the_same(incarnation: str) -> None:
    run = stored_run.scripts()[incarnation]
    assert findings(run, is_redacted=True) == findings(run, is_redacted=False)


def test_correct_runs_have_no_findings(payloads: list[bytes]) -> None:
    for run in (events(payloads), run_with_a_waiting_beam_search()):
        assert findings(run, is_redacted=False) == findings(run, is_redacted=True) == []


def run_with_a_waiting_beam_search() -> list[Any]:
    """A beam search waits for as many slots as it has beams, while two of four are in use."""
    engine = LLMEngine(EngineConfig(device="cpu", max_num_seqs=4, max_model_len=64))
    collected = PayloadCollector()
    steps = StepPublisher(collected)
    collected.publish(engine_info(engine, engine_id="test", control=False))
    samples = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    beams = BeamSearchParams(beam_width=3, max_tokens=2)
    requests: list[Params] = [samples, samples, beams]
    for number, params in enumerate(requests):
        for group in engine.add_request(f"req-{number}", "Once", params):
            steps.arrived(group)
    while engine.has_unfinished_requests():
        steps.stepped(engine.step())
    run = events(collected.payloads)
    reasons = [reason for step in steps_of(run) for reason in step.wait_reasons]
    assert len([reason for reason in reasons if reason.cause == "seq_limit"]) > 35
    return run
