"""Accounts of all requests of random runs: they add up, and agree with the column *Harm*."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from seqtop.explain.explanation import explain, find_request
from seqtop.history import FileStore
from seqtop.history.memory_store import MemoryStore
from seqtop.history.replay import Replay
from seqtop.history.timeline import Timeline
from seqtop.ledger.account import NO_ESTIMATE, STEP_TIME, Account, Charge
from seqtop.ledger.ledger import HarmTotals, charge_all, find_blame, harm_totals
from seqtop.ledger.report import as_text
from seqtop.sequence import latency
from seqtop.state import EngineState, RequestState
from seqtop.state.fields import harm
from seqtop.state.freeze import freeze
from seqtop.state.wait_causes import SESSION_INPUT
from seqtop.wire import codec
from seqtop.wire.messages import Event, RequestArrived
from tests.explain.test_explanation import MILLISECOND, Recorded
from tests.support import field_cases
from tests.support.culprits import CulpritRun, Kind
from tests.support.latency_run import latency_run
from tests.support.random_engine import RandomEngine
from tests.support.random_runs import RandomRun
from tests.support.random_scheduler import random_schedule
from tests.support.simulated_scheduler import REMOTE, SimulatedScheduler


def sums(accounts: Iterable[Account]) -> defaultdict[str, float]:
    """Returns what is charged to each request."""
    charged: defaultdict[str, float] = defaultdict(float)
    for account in accounts:
        for item in account.charges():
            if item.request_id is not None:
                charged[item.request_id] += item.seconds
    return charged


def by_key(charges: Iterable[Charge]) -> dict[tuple[str, str | None, str, str], float]:
    """Returns the seconds of charges by all else."""
    return {
        (item.charged_to, item.request_id, item.cause, item.evidence): item.seconds
        for item in charges
    }


def assert_harm_is_the_sum_of_the_accounts(timeline: Timeline, accounts: Iterable[Account]) -> int:
    """Compares the column with the ledger, and returns the number of requests with harm."""
    charged = sums(accounts)
    requests = timeline.at(timeline.last).requests
    column = {name: harm(request) for name, request in requests.items()}
    assert column == pytest.approx({name: charged[name] for name in column}, abs=MILLISECOND)
    totals = harm_totals(timeline).totals()
    assert {total.request_id: total.seconds for total in totals} == column
    assert totals == sorted(totals, key=lambda total: -total.seconds)
    for total in totals:
        request = requests[total.request_id]
        assert total.estimated_seconds == request.harm_estimated
        assert total.waited_seconds == request.wait.total
    return len(charged)


@pytest.mark.parametrize("kind", ["long_prompt", "burst", "priority"])
def test_harm_of_a_long_queue_is_the_sum_of_the_accounts(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "run.seqtop"
    CulpritRun(kind, 1).record(path)
    with FileStore(path) as recording:
        assert assert_harm_is_the_sum_of_the_accounts(recording, charge_all(recording)) > 10


def record(run: RandomRun) -> Recorded:
    viewer = Recorded()
    viewer.publish(run.info())
    for _ in run.steps(viewer):
        pass
    return viewer


@pytest.mark.parametrize(
    "seeds",
    [range(20), pytest.param(range(20, 1_000), marks=pytest.mark.release("many seeds"))],
    ids=["few", "many"],
)
def test_harm_is_the_sum_of_the_accounts_in_random_runs(seeds: range) -> None:
    """With forks, several tokens a step, and preemptions of both kinds."""
    number = 0
    for seed in seeds:
        viewer = Recorded()
        for event in RandomEngine(seed, 80, num_blocks=24):
            viewer.publish(event)
        history = viewer.history
        number += assert_harm_is_the_sum_of_the_accounts(history, charge_all(history))
    assert number > 5 * len(seeds)


@pytest.mark.parametrize(
    "seeds",
    [range(8), pytest.param(range(8, 300), marks=pytest.mark.release("many seeds"))],
    ids=["few", "many"],
)
def test_harm_is_the_sum_of_the_accounts_when_the_engine_starts_again(seeds: range) -> None:
    """With sessions, loads, adapters, blocks of ended requests, and ids that are used again."""
    number = 0
    for seed in seeds:
        viewer = Recorded()
        for start in (1_000.0, 1_100.0, 1_200.0):
            events = random_schedule(seed + int(start), 40, start=start)
            if viewer.num_messages:
                viewer.restart(events[0])
            for event in events[bool(viewer.history.gaps) :]:
                viewer.publish(event)
        history = viewer.history
        assert [gap.restarted for gap in history.gaps] == [True, True]
        charged = sums(charge_all(history))
        column: defaultdict[str, float] = defaultdict(float)
        for total in harm_totals(history).totals():
            column[total.request_id] += total.seconds
        assert column == pytest.approx({name: charged[name] for name in column}, abs=MILLISECOND)
        assert charged.keys() <= column.keys()
        number += sum(seconds > 0 for seconds in column.values())
    assert number > 5 * len(seeds)


@pytest.mark.parametrize("seed", range(4))
def test_accounts_add_up_around_messages_that_are_missing(seed: int) -> None:
    """Each request has one account, with its whole time, also if it arrived or ended in between."""
    viewer = Recorded()
    gap = range(80, 130)
    in_gap: list[EngineState] = []
    for number, event in enumerate(RandomEngine(seed, 120, num_blocks=24)):
        if number not in gap:
            viewer.publish(event)
            continue
        viewer.state.apply(event)
        if number in (gap[0], gap[-1]):
            in_gap.append(freeze(viewer.state))
        if number == gap[-1]:
            viewer.history.restore("one", viewer.num_messages, viewer.state)
            viewer.num_messages += 1
    history, (before, after) = viewer.history, in_gap
    assert len(history.gaps) == 1
    accounts = {account.request_id: account for account in charge_all(history)}
    assert len(accounts) == len(charge_all(history))
    requests = history.at(history.last).requests
    ended = {name for name, own in after.requests.items() if own.finish_reason is not None}
    ended_in_gap = ended & {
        name for name, own in before.requests.items() if own.finish_reason is None
    }
    missing = ended - before.requests.keys()
    assert ended_in_gap
    assert accounts.keys() == requests.keys() - missing
    for name, account in accounts.items():
        request = requests[name]
        end = request.metrics.finished_time
        total = (history.at(history.last).time if end is None else end) - (
            request.metrics.arrival_time
        )
        charged = sum(item.seconds for item in account.charges())
        assert charged == pytest.approx(account.seconds, abs=MILLISECOND)
        assert account.seconds == pytest.approx(total, abs=MILLISECOND), name


def test_an_arrival_that_is_told_twice_opens_one_account() -> None:
    viewer = Recorded()
    arrivals = dict[str, Event]()
    for number, event in enumerate(RandomEngine(1, 60, num_blocks=24)):
        viewer.publish(event)
        if isinstance(event, RequestArrived):
            arrivals[event.request_id] = event
        if number in (40, 150):
            for again in arrivals.values():
                viewer.publish(again)
    accounts = charge_all(viewer.history)
    assert len(accounts) == len(arrivals)
    assert any(request.finish_reason for request in viewer.state.requests.values())
    assert_harm_is_the_sum_of_the_accounts(viewer.history, accounts)


def test_harm_of_requests_that_have_left_the_state_is_kept() -> None:
    viewer = Recorded()
    for event in RandomEngine(2, 80, num_blocks=24):
        viewer.publish(event)
    totals = HarmTotals()
    Replay(viewer.history, [totals], max_finished=1).run()
    assert len(totals.state.requests) < len(viewer.state.requests)
    assert totals.totals() == harm_totals(viewer.history).totals()


def test_a_request_that_runs_is_described_as_it_is_at_the_end() -> None:
    viewer = Recorded()
    for event in RandomEngine(3, 30):
        viewer.publish(event)
    history = viewer.history
    last = history.at(history.last)
    early = history.at(history.last // 2)
    running = [name for name, own in early.requests.items() if own.finish_reason is None]
    ended = [name for name in running if last.requests[name].finish_reason is not None]
    assert 0 < len(ended) < len(running)
    for name in running:
        blame = find_blame(history, early.requests[name])
        assert blame.request.metrics == last.requests[name].metrics
        end = last.requests[name].metrics.finished_time or last.time
        arrival = last.requests[name].metrics.arrival_time
        assert blame.own.seconds == pytest.approx(end - arrival, abs=MILLISECOND)
    # Of a request that is not in the recording, no time is known.
    unknown = RequestState("unknown", early.requests[running[0]].metrics, [99])
    blame = find_blame(history, unknown)
    assert (blame.request, blame.own.charges(), blame.harms) == (unknown, [], [])


def test_harm_counts_every_beam_sample_and_draft() -> None:
    """In a run with several samples and several iterations a step, and in one with drafts."""
    samples, drafts = RandomRun(4), RandomRun(5)
    for run in (samples, drafts):
        viewer = record(run)
        assert viewer.state.step_costs.per_step is not None
        accounts = charge_all(viewer.history)
        assert assert_harm_is_the_sum_of_the_accounts(viewer.history, accounts) > 10
    assert any(len(group.seqs) > 2 for group in samples.groups)
    assert samples.engine.config.num_scheduler_steps > 1
    assert drafts.engine.config.speculative == "draft-head"


@pytest.mark.parametrize(
    "seed",
    [0, 1, *(pytest.param(n, marks=pytest.mark.release("many seeds")) for n in range(2, 120))],
)
def test_charges_add_up_to_the_latency_and_agree_in_both_directions(seed: int) -> None:
    viewer = record(RandomRun(seed))
    accounts = {account.request_id: account for account in charge_all(viewer.history)}
    assert accounts.keys() == viewer.state.requests.keys()
    for name, account in accounts.items():
        request = viewer.state.requests[name]
        charges = account.charges()
        e2e = latency.e2e_latency(request.metrics)
        assert sum(item.seconds for item in charges) == pytest.approx(e2e, abs=MILLISECOND)
        assert {item.cause for item in charges if item.seconds < 0} <= {STEP_TIME}
        blame = find_blame(viewer.history, request)
        assert by_key(blame.own.charges()) == pytest.approx(by_key(charges))
        assert blame.own.seconds == pytest.approx(account.seconds)
        harms = {other.request_id: other.seconds for other in blame.harms}
        assert [*harms.values()] == sorted(harms.values(), reverse=True)
        expected = {
            victim: sum(item.seconds for item in other.charges() if item.request_id == name)
            for victim, other in accounts.items()
        }
        assert harms == pytest.approx({k: v for k, v in expected.items() if v}, abs=1e-9)


def test_a_wait_is_charged_to_the_holder_and_time_without_estimates_to_nobody() -> None:
    """As written in the run: `short` waits for blocks of `long`, and is preempted for it."""
    _, history = latency_run()
    located = find_request(history, "short")
    assert located is not None
    parts = {part.kind: part.seconds for part in explain(history, *located).parts()}
    seconds = {
        (item.charged_to, item.request_id, item.cause): item.seconds
        for item in find_blame(history, located[0]).own.charges()
    }
    blocked = seconds["request", "long", "no_blocks"]
    assert blocked == pytest.approx(0.1)
    assert parts["preempted"] == pytest.approx(0.05)
    # The other steps were shared, and after six steps nothing is estimated.
    assert seconds["unexplained", None, NO_ESTIMATE] == pytest.approx(0.1)
    assert seconds["itself", None, "decode"] == pytest.approx(0.05)


def test_a_stall_is_charged_to_the_ended_requests_that_hold_the_blocks() -> None:
    """The host is not: nothing could run in the time between its steps either."""
    viewer = Recorded()
    for event in field_cases.ended_requests_keep_blocks(60):
        viewer.publish(event)
    history = viewer.history
    assert_harm_is_the_sum_of_the_accounts(history, charge_all(history))
    own = find_blame(history, viewer.state.requests["n3"]).own
    seconds: defaultdict[str, float] = defaultdict(float)
    for item in own.charges():
        seconds[item.request_id or item.charged_to] += item.seconds
    assert seconds["host"] < 0.05 * own.seconds
    assert sum(seconds[f"p{number}"] for number in range(6)) > 0.9 * own.seconds


def test_nothing_is_charged_to_the_time_after_the_end() -> None:
    """The blocks of a prefill node's requests are fetched a second after their ends."""
    viewer = Recorded()
    for event in field_cases.ended_requests_free_blocks():
        viewer.publish(event)
    accounts = charge_all(viewer.history)
    assert_harm_is_the_sum_of_the_accounts(viewer.history, accounts)
    assert len(accounts) == 40
    for account in accounts:
        metrics = viewer.state.requests[account.request_id].metrics
        assert account.seconds == pytest.approx(latency.e2e_latency(metrics), abs=MILLISECOND)
        assert {item.cause for item in account.charges()}.isdisjoint({"unknown"})


def test_a_request_that_joins_the_queue_after_a_stall_did_not_wait_in_it() -> None:
    """Its KV cache was loaded until then; nothing runs, as the head of the queue lacks blocks."""
    run = SimulatedScheduler(num_gpu_blocks=40)
    run.add("head", 500, 4)
    first, second = (run.add(name, 200, 4, status=REMOTE) for name in ("first", "second"))
    for request in (first, second):
        run.load(request, 13)
    run.steps(3, gap=0.05)
    run.park(first, "")
    run.steps(3, gap=0.05)
    run.park(second, "")
    run.steps(3, gap=0.05)
    run.abort(run.waiting[0])
    run.steps(10)
    viewer = Recorded()
    for event in run.events:
        viewer.publish(event)
    accounts = charge_all(viewer.history)
    assert assert_harm_is_the_sum_of_the_accounts(viewer.history, accounts) > 1


def test_shared_steps_are_never_charged_with_more_than_they_took() -> None:
    viewer = Recorded()
    for event in field_cases.cuda_graph_is_missing():
        viewer.publish(event)
    request = viewer.state.requests["r40"]
    own = find_blame(viewer.history, request).own
    assert sum(item.seconds for item in own.charges() if item.charged_to != "unexplained") <= (
        own.seconds + MILLISECOND
    )


def test_a_session_waits_for_its_client_between_two_turns() -> None:
    """The column, the parts and the charges say so, and none of it is the host's."""
    run = SimulatedScheduler(max_num_seqs=2)
    session = run.add("session", 60, 4, is_session=True)
    run.add("other", 60, 200)
    run.steps(30)
    since = session.last_token
    assert since is not None
    idle = run.now - since
    run.feed(session, 20, 4)
    run.steps(10)
    run.abort(session)
    run.steps(2)
    viewer = Recorded()
    for event in run.events:
        viewer.publish(event)
    accounts = {account.request_id: account for account in charge_all(viewer.history)}
    assert_harm_is_the_sum_of_the_accounts(viewer.history, accounts.values())
    request = viewer.state.requests["session"]
    assert request.wait.by_cause[SESSION_INPUT] > idle > 0.1
    located = find_request(viewer.history, "session")
    assert located is not None
    parts = explain(viewer.history, *located).parts()
    charges = accounts["session"].charges()
    assert (
        sum(part.seconds for part in parts if part.cause == SESSION_INPUT)
        == pytest.approx(sum(item.seconds for item in charges if item.cause == SESSION_INPUT))
        == pytest.approx(request.wait.by_cause[SESSION_INPUT])
    )
    assert {part.kind for part in parts if part.cause == SESSION_INPUT} == {"queued"}
    assert {item.charged_to for item in charges if item.cause == SESSION_INPUT} == {"itself"}
    assert not [part for part in parts if part.kind in ("unknown", "unscheduled")]


@pytest.mark.parametrize(
    ("case", "name", "words"),
    [
        (field_cases.cuda_graph_is_missing, "r60", "in decode steps without a CUDA graph"),
        (field_cases.scheduler_grows, "r150", "the scheduler takes"),
    ],
)
def test_facts_of_steps_are_said_before_who_is_charged(
    case: Callable[[], list[Event]], name: str, words: str
) -> None:
    history, state = MemoryStore(), EngineState()
    for number, event in enumerate(case()):
        state.apply(event)
        history.append(number, codec.encode(event), event, state)
    lines = as_text(find_blame(history, state.requests[name])).splitlines()
    assert lines[1].startswith("The run: ")
    assert words in lines[1]
    assert "charged to" in lines[2]


def test_nobody_is_charged_with_the_time_of_the_scheduler() -> None:
    """It takes 60 ms of a step of 70 at the end, and a request has 60 steps with seven others."""
    state = EngineState()
    for event in field_cases.scheduler_grows():
        state.apply(event)
    costs = state.step_costs
    assert costs.per_step is not None
    assert costs.per_step < 0.012
    assert max(request.harm_estimated for request in state.requests.values()) < 0.1
