"""Redaction changes nothing that a check judges in whole runs. The tests of rules have mutants."""

import random
from collections.abc import Callable
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
from tests.support.mutants import PayloadCollector, Run, check, events, steps_of
from tests.support.random_runs import RandomRun

OF_TOKENS = {"block-shared", "output-differs", "text-length"}
"""The rules that compare tokens or texts."""


def _lose_a_step(choose: random.Random, run: Run) -> None:
    run.remove(choose.choice(steps_of(run)))


def _lose_an_update(choose: random.Random, run: Run) -> None:
    updates = choose.choice([step.sequences for step in steps_of(run) if step.sequences])
    updates.pop(choose.randrange(len(updates)))


def _take_the_next_block(choose: random.Random, run: Run) -> None:
    updates = [update for step in steps_of(run) for update in step.sequences if update.new_blocks]
    update = choose.choice(updates)
    update.new_blocks[0] += 1


def _count_a_free_block(choose: random.Random, run: Run) -> None:
    choose.choice(steps_of(run)).stats.num_free_blocks += 1


def _compute_more(choose: random.Random, run: Run) -> None:
    for update in choose.choice(steps_of(run)).sequences:
        if update.num_computed_tokens is not None:
            update.num_computed_tokens += 3


def _always_name_one_cause(choose: random.Random, run: Run) -> None:
    cause = choose.choice(("no_blocks", "seq_limit", "token_budget"))
    for step in steps_of(run):
        for reason in step.wait_reasons:
            reason.cause = cause


BUGS: tuple[Callable[[random.Random, Run], None], ...] = (
    _lose_a_step,
    _lose_an_update,
    _take_the_next_block,
    _count_a_free_block,
    _compute_more,
    _always_name_one_cause,
)


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


def test_random_runs_with_and_without_a_bug_have_the_findings_of_the_plain_ones() -> None:
    """They have beams, samples, drafts, swaps and preemptions."""
    found: set[str] = set()
    for seed in range(6):
        collected, random_run = PayloadCollector(), RandomRun(seed)
        collected.publish(random_run.info())
        for _ in random_run.steps(collected):
            pass
        run = events(collected.payloads)
        assert findings(run, is_redacted=False) == findings(run, is_redacted=True) == []
        for bug in BUGS:
            run = events(collected.payloads)
            bug(random.Random(seed), run)
            plain = findings(run, is_redacted=False)
            kept = [finding for finding in plain if finding.rule not in OF_TOKENS]
            redacted = findings(run, is_redacted=True)
            redacted = [finding for finding in redacted if finding.rule not in OF_TOKENS]
            assert redacted == kept, (seed, bug)
            found |= {finding.rule for finding in kept}
    assert len(found) > 5, found
