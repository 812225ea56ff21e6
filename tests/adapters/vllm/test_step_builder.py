"""The adapter around a scheduler: a real publisher's process, a real viewer, at every step."""

from collections.abc import Iterator

import pytest

from seqtop.adapters.vllm.hook import follow
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.adapters.vllm.wrapping import Wrapping
from seqtop.checks import Checker, Finding
from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.session import Session
from seqtop.state.listener import StateChange
from seqtop.state.ordering import SequenceView
from seqtop.wire import parsing
from seqtop.wire.decode_rows import num_decodes
from seqtop.wire.messages import Step
from tests.support.fake_vllm import Request, RequestStatus, Scheduler, step
from tests.support.waiting import SECONDS, wait_until

SHARED = list(range(100, 112))
REQUESTS = [
    Request(f"cmpl-{number}-0-{number:08x}", SHARED + [number] * (number + 1), 12)
    for number in range(8)
]


class Watch:
    """Checks every message as a viewer's listener."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.findings: list[Finding] = []
        self.num_in_rows = self.num_in_columns = 0

    def note(self, change: StateChange) -> None:
        event, state = change.event, change.state
        if event is not None:
            self.findings += self.checker.apply(parsing.event(change.payload))
            if isinstance(event, Step):
                self.num_in_rows += len(event.sequences)
                self.num_in_columns += num_decodes(event)
            return
        assert state.step == -1, "the viewer was there before the first step"
        self.checker = Checker()
        if state.info is not None:
            self.checker.apply(state.info)


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(num_gpu_blocks=17)


@pytest.fixture
def wrapping(scheduler: Scheduler, endpoint: str) -> Iterator[Wrapping]:
    followed = follow(scheduler, AdapterSettings(bind=endpoint))
    assert followed is not None
    yield followed
    scheduler.shutdown()


def name(request: Request) -> str:
    return request.request_id[:-9]


def catch_up(session: Session, scheduler: Scheduler, step_number: int) -> None:
    """Wait for a step and the ends that are told after it."""

    def there() -> bool:
        num_left = sum(each.finish_reason is None for each in session.state.requests.values())
        return session.state.step == step_number and num_left == len(scheduler.requests)

    wait_until(there)


def assert_shows(session: Session, scheduler: Scheduler) -> None:
    with session.lock:
        state = session.state
        assert state.num_anomalies == 0, state.last_anomaly
        unfinished = {each for each in state.requests if each not in state.finished}
        assert unfinished == {name(each) for each in scheduler.requests.values()}
        for request in scheduler.requests.values():
            sequence = state.sequences[state.requests[name(request)].seq_ids[0]]
            running = request.status is RequestStatus.RUNNING
            assert sequence.status is SequenceStatus["RUNNING" if running else "WAITING"]
            assert sequence.engine_status == ("PREEMPTED" if request.status == 6 else "")
            assert sequence.num_computed_tokens == request.num_computed_tokens
            assert sequence.block_table == scheduler.table(request.request_id)
            assert sequence.output_token_ids == request.tokens[request.num_prompt_tokens :]
        view = SequenceView()
        view.rebuild(state)
        queue = [state.sequences[seq_id].request_id for seq_id in view.queue]
        assert queue == [name(request) for request in scheduler.waiting]
        assert state.stats is not None
        free = list(scheduler.pool.free_queue)
        cached = sum(block.block_hash is not None for block in free)
        assert state.stats.num_cached_blocks == cached
        assert state.stats.num_free_blocks == len(free) - cached
        assert state.stats.num_used_blocks == scheduler.pool.num_gpu_blocks - 1 - len(free)


def test_viewer_shows_the_scheduler_at_every_step(
    scheduler: Scheduler, wrapping: Wrapping, endpoint: str
) -> None:
    watch = Watch()
    session = Session(endpoint)
    session.add_listener(watch.note)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for request in REQUESTS:
            scheduler.add_request(request)
        num_steps = 0
        while scheduler.requests:
            step(scheduler)
            catch_up(session, scheduler, num_steps)
            assert_shows(session, scheduler)
            num_steps += 1
            if num_steps == 12:
                scheduler.finish_requests(REQUESTS[-1].request_id, RequestStatus.FINISHED_ABORTED)
        step(scheduler)  # vLLM makes one more, to tell its workers who ended
        wait_until(lambda: session.state.step == num_steps)
        state = session.state
        assert watch.findings == []
        assert watch.num_in_columns > 2 * watch.num_in_rows, "most of it is plain decodes"
        assert state.requests["cmpl-7-0"].finish_reason == "abort"
        assert [state.requests[name(each)].finish_reason for each in REQUESTS[:-1]] == [
            "length"
        ] * 7
        preempted = [each for each in state.requests.values() if each.num_preemptions]
        assert preempted, "the pool was meant to be too small"
        assert {each.preempted_for for each in preempted} <= state.requests.keys()
        assert all(each.num_lost_tokens for each in preempted)
        assert state.stats is not None
        assert state.stats.prefix_cache_hits > 0, "the prompts were meant to share a prefix"
        metrics = state.requests["cmpl-0-0"].metrics
        assert metrics.first_token_time is not None
        assert metrics.time_in_queue is not None
        assert metrics.model_forward_time is None
        scheduler.shutdown()
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)


def test_kinds_of_waiting_are_told(scheduler: Scheduler, wrapping: Wrapping, endpoint: str) -> None:
    request = Request("guided-00000000", SHARED, 2)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    scheduler.deferred_waiting.add(request)
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        scheduler.add_request(Request("plain-00000000", SHARED, 3))
        scheduler.add_request(request)
        step(scheduler)
        catch_up(session, scheduler, 0)
        plain, guided = session.state.sequences.values()
        assert plain.status is SequenceStatus.RUNNING
        assert guided.status is SequenceStatus.WAITING
        assert guided.engine_status == "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"
        request.status = RequestStatus.WAITING
        scheduler.deferred_waiting.clear()
        step(scheduler)
        catch_up(session, scheduler, 1)
        assert guided.status is SequenceStatus.RUNNING
        assert guided.engine_status == ""
