"""An error that one request causes ends this request, and no other."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.openai.bridge import Bridge, FailedError
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.entrypoints.server import EngineServer
from engine_stub.failure_log import SECONDS_BETWEEN_TRACEBACKS, FailureLog
from engine_stub.model_executor.sampler import prompt_logprobs
from engine_stub.processing import output_processor
from engine_stub.worker import model_runner
from seqtop.checks.checker import Checker
from seqtop.sequence import (
    PoolingParams,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceStatus,
    token_inputs,
)
from seqtop.wire.messages import RequestFinished
from tests.support.running import DirectPublisher, MakeEngine, Sink, drain, greedy, tokens

PROMPTS = {"first": [40, 50, 60], "bad": [70, 80, 90], "last": [41, 51, 61]}


def failing(*_: object, **__: object) -> NoReturn:
    raise OverflowError("(34, 'Numerical result out of range')")


def fail_when(method: Callable[..., Any], is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """Returns a method that fails for some of its arguments."""

    def replaced(*arguments: Any, **named: Any) -> Any:
        return failing() if is_bad(*arguments) else method(*arguments, **named)

    return replaced


def break_detokenizer(engine: LLMEngine) -> None:
    detokenizer = engine.output_processor.detokenizer
    detokenizer.append = fail_when(
        detokenizer.append, lambda seq: seq.prompt_token_ids[0] == 70 and seq.get_output_len() == 3
    )


def break_end_of_text(engine: LLMEngine) -> None:
    detokenizer = engine.output_processor.detokenizer
    detokenizer.finish = fail_when(detokenizer.finish, lambda seq: seq.prompt_token_ids[0] == 70)


def break_sampler(engine: LLMEngine) -> None:
    runner = engine.worker.model_runner
    runner.sampler = fail_when(
        runner.sampler,
        lambda _, requests: any(request.data.prompt_token_ids[0] == 70 for request in requests),
    )


def is_bad(row: Any) -> bool:
    return bool(row.data.prompt_token_ids[0] == 70)


def break_rejection_sampler(engine: LLMEngine) -> None:
    runner = engine.worker.model_runner
    runner.rejection_sampler = fail_when(
        runner.rejection_sampler, lambda _, requests, drafts: any(map(is_bad, requests))
    )


@pytest.mark.parametrize("options", [{}, {"logprobs": 2}, {"stop": ["withheld"]}], ids=str)
@pytest.mark.parametrize(
    ("break_it", "settings"),
    [
        *itertools.product(
            (break_detokenizer, break_end_of_text, break_sampler), ({}, {"num_scheduler_steps": 3})
        ),
        (break_rejection_sampler, {"speculative": "ngram"}),
    ],
)
def test_the_others_go_on_and_viewers_receive_a_consistent_end(
    make_engine: MakeEngine,
    break_it: Callable[[LLMEngine], None],
    settings: dict[str, Any],
    options: dict[str, Any],
) -> None:
    # A repeated prompt has drafts from its own text.
    num_repeats, max_tokens = (6, 20) if "speculative" in settings else (1, 9)

    def run(engine: LLMEngine, *names: str) -> tuple[dict[str, SequenceGroup], dict[str, str]]:
        sink = Sink()
        sink.publish(engine_info(engine, engine_id="test", control=False))
        steps = StepPublisher(sink)
        groups: dict[str, SequenceGroup] = {}
        errors: dict[str, str] = {}
        for name in names:
            params = greedy(max_tokens, **options)
            (groups[name],) = engine.add_request(name, PROMPTS[name] * num_repeats, params)
            steps.arrived(groups[name])
        while engine.has_unfinished_requests():
            record = engine.step()
            engine.block_manager.check()
            errors |= record.errors
            steps.stepped(record)
        checker = Checker()
        assert [finding for event in sink.events for finding in checker.apply(event)] == []
        assert checker.end() == []
        ends = {
            event.request_id: event.status
            for event in sink.events
            if isinstance(event, RequestFinished)
        }
        assert ends == {name: group.first_seq.status for name, group in groups.items()}
        return groups, errors

    undisturbed, _ = run(make_engine(**settings), "first", "last")
    engine = make_engine(**settings)
    break_it(engine)
    groups, errors = run(engine, "first", "bad", "last")
    assert list(errors) == ["bad"]
    assert "OverflowError" in errors["bad"]
    assert groups["bad"].first_seq.status is SequenceStatus.FINISHED_ABORTED
    for name in ("first", "last"):
        assert tokens([groups[name]]) == tokens([undisturbed[name]])
    assert engine.block_manager.stats.used == 0
    assert not engine.seq_groups


@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_a_beam_search_that_fails_frees_its_forks(make_engine: MakeEngine, num_before: int) -> None:
    engine = make_engine()
    (other,) = engine.add_request("other", PROMPTS["first"], greedy(9))
    (group,) = engine.add_request(
        "bad", PROMPTS["bad"], BeamSearchParams(beam_width=3, max_tokens=12)
    )
    for _ in range(num_before):
        engine.step()
    detokenizer = engine.output_processor.detokenizer
    calls = iter(range(2))
    # The second beam of the step fails, when the first has been forked already.
    detokenizer.append = fail_when(
        detokenizer.append, lambda seq: seq.prompt_token_ids[0] == 70 and next(calls, 1) == 1
    )
    drain(engine)
    assert group.first_seq.status is SequenceStatus.FINISHED_ABORTED
    assert other.first_seq.get_output_len() == 9
    assert engine.block_manager.stats.used == 0


def test_beams_fail_together_if_the_first_has_ended_already() -> None:
    beams = [Sequence(seq_id, token_inputs(PROMPTS["bad"]), 8) for seq_id in range(3)]
    group = SequenceGroup("bad", beams, 0.0)
    beams[0].status = SequenceStatus.FINISHED_STOPPED
    assert [record.seq for record in output_processor._fail(group)] == beams
    assert {seq.status for seq in beams} == {SequenceStatus.FINISHED_ABORTED}


def test_an_error_while_a_request_is_added_refuses_it(make_engine: MakeEngine) -> None:
    engine = make_engine()
    server = EngineServer(engine, DirectPublisher())
    calls = iter(range(2))
    add = engine.scheduler.add_seq_group
    engine.scheduler.add_seq_group = fail_when(add, lambda _: next(calls, 2) == 1)
    with pytest.raises(ValueError, match="cannot be processed: OverflowError"):
        server.add("several", [40, 50], SamplingParams(n=3, seed=1))
    server.add("next", [40, 50], greedy(2))
    drain(engine)
    assert not engine.seq_groups


@pytest.mark.parametrize(
    "params", [greedy(9), BeamSearchParams(beam_width=2, max_tokens=9)], ids=["greedy", "beams"]
)
def test_the_client_gets_the_error(make_engine: MakeEngine, params: Any) -> None:
    engine = make_engine()
    break_detokenizer(engine)
    bridge = Bridge()
    server = EngineServer(engine, DirectPublisher(), sources=[bridge])

    async def request() -> None:
        submitting = asyncio.ensure_future(
            bridge.submit("bad", [token_inputs(PROMPTS["bad"])], params)
        )
        await asyncio.sleep(0)
        bridge.serve(server)
        completion = await submitting
        while engine.has_unfinished_requests():
            bridge.stepped(engine.step())
        with pytest.raises(FailedError, match="request bad failed: OverflowError"):
            async for _ in completion.pieces():
                pass

    asyncio.run(request())


def test_prompt_logprobs_that_fail_end_their_request_only(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    monkeypatch.setattr(
        model_runner,
        "prompt_logprobs",
        fail_when(prompt_logprobs, lambda _, token_ids, count: count == 3),
    )
    (other,) = engine.add_request("other", PROMPTS["first"], greedy(5, prompt_logprobs=1))
    (bad,) = engine.add_request("bad", PROMPTS["bad"], greedy(5, prompt_logprobs=3))
    (record, *_) = drain(engine)
    assert "OverflowError" in record.errors["bad"]
    assert bad.first_seq.status is SequenceStatus.FINISHED_ABORTED
    assert len(other.prompt_logprobs) == 3
    assert engine.block_manager.stats.used == 0


def test_a_prompt_that_cannot_be_pooled_ends_alone(make_engine: MakeEngine) -> None:
    engine = make_engine()
    pooler = engine.worker.model_runner.pooler
    pooler.pool = fail_when(pooler.pool, lambda hidden, group, start: group.request_id == "bad")
    (other,) = engine.add_request("other", PROMPTS["first"], PoolingParams())
    (bad,) = engine.add_request("bad", PROMPTS["bad"], PoolingParams())
    (generating,) = engine.add_request("generating", PROMPTS["last"], greedy(3))
    drain(engine)
    assert other.pooled_data is not None
    assert bad.first_seq.status is SequenceStatus.FINISHED_ABORTED
    assert generating.first_seq.get_output_len() == 3


def test_tracebacks_of_many_failures_are_few(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = FailureLog(clock=lambda: now[0])

    def fail(request_id: str) -> None:
        try:
            failing()
        except OverflowError:
            log("request %s failed", request_id)

    for number in range(1_000):
        fail(f"user-{number}" + "x" * 10_000)
    assert len(caplog.records) == 1
    assert len(caplog.text) < 2_000
    now[0] += SECONDS_BETWEEN_TRACEBACKS
    fail("one more")
    assert "999 more requests have failed" in caplog.text
    assert "OverflowError" in caplog.text
