"""Parents of samples, the encoder budget, and errors in the observer, after which vLLM goes on."""

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.observations import AllRequests, AnyObservation, Arrived, Stepped
from seqtop.adapters.translate import Translator
from seqtop.adapters.vllm import hook
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.wrapping import Wrapping
from seqtop.live.session import Session
from seqtop.sequence.names import MAX_NAME_LENGTH
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.wire.messages import RequestFinished
from tests.support.fake_vllm import (
    AsyncScheduler,
    Request,
    RequestStatus,
    Scheduler,
    step,
    wrapped,
)
from tests.support.waiting import SECONDS, wait_until


def test_samples_of_one_prompt_have_one_parent(endpoint: str) -> None:
    ids = {  # vLLM's own, and the client's
        "0_req-0a1b2c3d": "req",
        "12_req-0a1b2c3d": "req",
        "0_req-99999999": "req",
        "0_plain": "plain",
        "0_foo-0a1b2c3d": "0_foo",
        "1_0_foo-0a1b2c3d": "0_foo",
        "x_req-0a1b2c3d": "x_req",
        f"0_{'x' * 2 * MAX_NAME_LENGTH}-0a1b2c3d": "x" * 2 * MAX_NAME_LENGTH,
    }
    create = vars(Request)["from_engine_core_request"]
    scheduler = Scheduler()
    attachment = hook.follow(scheduler, PublisherSettings(bind=endpoint))
    assert attachment is not None
    with Session(endpoint) as session:
        session.await_engine(SECONDS)
        for request_id, external in ids.items():
            sent = SimpleNamespace(
                request_id=request_id, external_req_id=external, prompt_token_ids=[1, 2, 3]
            )
            scheduler.add_request(Request.from_engine_core_request(sent, None))
        wait_until(lambda: len(session.state.requests) == len(ids))
        with session.lock:
            parents = [request.parent_request_id for request in session.state.requests.values()]
    assert parents[:7] == [
        "req-0a1b2c3d",
        "req-0a1b2c3d",
        "req-99999999",  # the same id of another client
        "plain",
        "",
        "0_foo-0a1b2c3d",
        "",
    ]
    assert len(parents[7]) == MAX_NAME_LENGTH
    attachment.close("the end")
    assert vars(Request)["from_engine_core_request"] is create


def test_ids_are_sent_when_others_run_and_after_a_loss(modules: SimpleNamespace) -> None:
    sent: list[AnyObservation] = []
    sink = SimpleNamespace(wants_all_requests=False, send=sent.append)
    scheduler = Scheduler()
    _, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))

    def fail(error: BaseException) -> None:
        pytest.fail(str(error))

    SchedulerObserver(scheduler, Wrapping(fail).wrap, sink, layout)

    def ran() -> dict[str, int] | None:
        step(scheduler)
        stepped = [message for message in sent if isinstance(message, Stepped)]
        return stepped[-1].num_scheduled_tokens

    scheduler.add_request(Request("one", [1, 2, 3], 20))
    assert [ran(), ran(), ran()] == [{"one": 3}, None, None]
    scheduler.add_request(Request("two", [1], 20))
    assert [ran(), ran()] == [{"one": 1, "two": 1}, None]
    sink.wants_all_requests = True  # found true after the step has been sent
    assert ran() is None
    sink.wants_all_requests = False
    assert isinstance(sent[-1], AllRequests)
    assert sent[-1].counts.num_waiting == 0
    assert [ran(), ran()] == [{"one": 1, "two": 1}, None]


@pytest.mark.parametrize(
    ("params", "transfer_id"),
    [
        (None, ""),
        ({"do_remote_decode": True, "remote_request_id": None}, "one"),
        ({"do_remote_prefill": True, "remote_request_id": "two"}, "two"),
        ({"do_remote_decode": True, "remote_request_id": "before"}, "one"),  # of the last turn
        ({"do_remote_prefill": True, "transfer_id": 4711}, "4711"),
        ({"do_remote_prefill": True, "transfer_id": ["no id"]}, ""),
        ("no parameters", ""),
    ],
)
def test_the_id_of_a_transfer(params: Any, transfer_id: str, modules: SimpleNamespace) -> None:
    scheduler = Scheduler()
    _, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))
    sent: list[AnyObservation] = []
    sink = SimpleNamespace(wants_all_requests=False, send=sent.append)
    errors: list[Exception] = []
    SchedulerObserver(scheduler, Wrapping(errors.append).wrap, sink, layout)
    request = Request("one", [1, 2, 3], 20)
    vars(request)["kv_transfer_params"] = params
    scheduler.add_request(request)
    (arrived,) = (message for message in sent if isinstance(message, Arrived))
    assert (arrived.transfer_id, errors) == (transfer_id, [])


def test_a_repair_says_which_requests_have_run(modules: SimpleNamespace) -> None:
    scheduler = Scheduler()
    _, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))
    sent: list[AnyObservation] = []
    sink = SimpleNamespace(wants_all_requests=False, send=sent.append)
    errors: list[Exception] = []
    running, new, preempted, loaded = (Request(name, [1, 2, 3], 20) for name in "rnpl")
    scheduler.add_request(running)
    step(scheduler)
    for request in (new, preempted, loaded):
        scheduler.add_request(request)
    preempted.num_preemptions, loaded.num_computed_tokens = 1, 2
    SchedulerObserver(scheduler, Wrapping(errors.append).wrap, sink, layout)
    (everything,) = sent
    assert isinstance(everything, AllRequests)
    have_run = {
        current.arrived.request_id: current.was_scheduled for current in everything.requests
    }
    assert have_run == {"r": True, "n": False, "p": True, "l": True}
    assert not errors


@pytest.mark.parametrize("kind", [Scheduler, AsyncScheduler])
def test_an_abort_says_how_often_was_scheduled_before_it(kind: type[Scheduler]) -> None:
    scheduler = kind()
    started, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))
    translator, events, errors = Translator(started), list[Any](), list[Exception]()
    sink = SimpleNamespace(
        wants_all_requests=False,
        send=lambda observation: events.extend(translator.events(observation)),
    )
    SchedulerObserver(scheduler, Wrapping(errors.append).wrap, sink, layout)
    scheduler.add_request(Request("one-00000000", [1, 2, 3], 20))
    scheduler.add_request(Request("two-00000000", [1, 2, 3], 20))
    for number in range(4):
        if number == 2:
            scheduler.finish_requests("one-00000000", RequestStatus.FINISHED_ABORTED)
        step(scheduler)
    (ended,) = (event for event in events if isinstance(event, RequestFinished))
    assert (ended.request_id, ended.num_schedule_calls) == ("one", 2)
    assert not errors


def sizes(*owners: object) -> dict[tuple[str, str], int]:
    """The lengths of the containers of some objects."""
    return {
        (type(owner).__name__, name): len(value)
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, dict | list | set | deque)
    }


@pytest.mark.parametrize("kind", [Scheduler, AsyncScheduler])
def test_nothing_is_held_of_requests_that_have_left(kind: type[Scheduler]) -> None:
    scheduler = kind(max_loras=1)
    started, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))
    translator = Translator(started)
    sink = SimpleNamespace(
        wants_all_requests=False, send=lambda observation: [*translator.events(observation)]
    )
    errors: list[Exception] = []
    observer = SchedulerObserver(scheduler, Wrapping(errors.append).wrap, sink, layout)
    parts = observer._admission, observer._cache, observer._pool, observer._journal
    owners = observer, *parts, translator
    at_first = sizes(*owners)

    def add(number: int) -> Request:
        sent = SimpleNamespace(
            request_id=f"{number}_req-00000000",
            external_req_id="req",
            prompt_token_ids=[number] * 9,
        )
        request = Request.from_engine_core_request(sent, None)
        request.lora_request = SimpleNamespace(lora_int_id=number % 2, lora_name="poems")
        scheduler.add_request(request)
        return request

    add(1).resumable = True
    guided = add(2)
    guided.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.connector = object()
    add(3)
    add(5)
    for _ in range(3):
        step(scheduler)
    guided.status = RequestStatus.WAITING
    scheduler.finish_requests("5_req-00000000", RequestStatus.FINISHED_ABORTED)
    for _ in range(20):
        scheduler.finished_recving_kv_req_ids.update(
            request.request_id
            for request in scheduler.kv_holding_waiting
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        )
        step(scheduler)
    scheduler.finish_requests("1_req-00000000", RequestStatus.FINISHED_ABORTED)
    for request in list(scheduler.requests.values()):
        scheduler._free_blocks(request)
    for _ in range(3):
        step(scheduler)
    at_first["StepJournal", "in_flight"] = scheduler.num_steps_ahead
    assert sizes(*owners) == at_first
    assert not errors


@pytest.mark.parametrize("budget", [0, 16])
def test_encoder_budget_is_shown_of_models_with_an_encoder(budget: int, endpoint: str) -> None:
    scheduler = Scheduler(encoder_budget=budget)
    assert hook.follow(scheduler, PublisherSettings(bind=endpoint)) is not None
    with Session(endpoint) as session:
        session.await_engine(SECONDS)
        request = Request("one-00000000", [1, 2, 3], 2)
        request.encoder_inputs = [5, 2] if budget else []
        scheduler.add_request(request)
        shown = []
        for number in range(2):
            step(scheduler)
            wait_until(lambda: session.state.step == number)  # noqa: B023 - called at once
            stats = session.state.stats
            assert stats is not None
            shown.append((stats.num_encoder_tokens, stats.num_used_encoder_slots))
        info = session.state.info
        assert info is not None
    assert not scheduler.requests
    limits = info.max_num_encoder_input_tokens, info.encoder_cache_size
    if budget:
        assert limits == (16, 16)
        assert shown == [(7, 7), (0, 0)]
    else:
        assert limits == (None, None)
        assert shown == [(None, None)] * 2
    scheduler.shutdown()


@pytest.mark.parametrize(
    "broken",
    [
        "_after_create",
        "_before_add",
        "_after_add",
        "_before_schedule",
        "_after_schedule",
        "_after_update",
        "_before_free",
        "_after_free",
    ],
)
def test_fault_disables_it_with_one_line_and_vllm_goes_on(
    broken: str,
    modules: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    endpoint: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected\nby this test")

    monkeypatch.setattr(SchedulerObserver, broken, fail)
    scheduler = Scheduler()
    caplog.set_level(logging.WARNING)
    attachment = hook.follow(scheduler, PublisherSettings(bind=endpoint))
    assert attachment is not None
    sent = SimpleNamespace(
        request_id="one-00000000", external_req_id="one", prompt_token_ids=[1, 2, 3]
    )
    scheduler.add_request(Request.from_engine_core_request(sent, None))
    tokens: list[Any] = []
    while scheduler.requests:
        tokens += step(scheduler)
    assert len(tokens) == 3, "the request got what it would have got anyway"
    assert wrapped(scheduler) == []
    (record,) = caplog.records
    assert "RuntimeError: injected by this test" in record.message
    assert "vLLM continues" in record.message
    assert "\n" not in record.message
