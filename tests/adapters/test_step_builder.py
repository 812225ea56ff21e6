"""The adapter around a scheduler: a real publisher's process, a real viewer, at every step."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import seqtop.checks.wait_graph_rules
from seqtop.adapters.vllm.hook import follow
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.state.ordering import SequenceView
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.wire import codec, parsing
from seqtop.wire.batch import members
from seqtop.wire.messages import CudaGraph, Step
from tests.support.fake_vllm import (
    AsyncScheduler,
    PauseState,
    PipelinedScheduler,
    Request,
    RequestStatus,
    Scheduler,
    drain,
    step,
)
from tests.support.waiting import SECONDS, wait_until

SHARED = list(range(100, 112))
PLAIN = ("WAITING", "RUNNING")


@pytest.fixture(autouse=True)
def _seconds_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that wait for some seconds before they speak find what they find on a slow machine."""
    for name in ("_SWEEP_SECONDS", "_PROVEN_SECONDS"):
        monkeypatch.setattr(seqtop.checks.wait_graph_rules, name, 0.0)


class Watch:
    """Checks every message as a viewer's listener."""

    def __init__(self, *, joins_late: bool = False) -> None:
        self.checker = Checker()
        self.findings: list[Finding] = []
        self.batch: dict[str, int] = {}
        """The tokens of each request in the batch of the last step."""
        self._joins_late = joins_late
        self.num_members = self.num_whole_tables = 0

    def note(self, change: StateChange) -> None:
        event, state = change.event, change.state
        if event is not None:
            self.findings += self.checker.apply(parsing.event(change.payload))
            if isinstance(event, Step):
                self.batch = {member.request_id: member.chunk for member in members(event)}
                self.num_members += len(self.batch)
                self.num_whole_tables += sum(
                    update.block_table is not None for update in event.sequences
                )
            return
        if self._joins_late:
            # Two states must not share parts of a snapshot.
            self.checker = Checker(codec.decode(codec.encode(state), EngineState))
            return
        assert state.step == -1, "the viewer was there before the first step"
        self.checker = Checker()
        if state.info is not None:
            self.checker.apply(state.info)


@contextmanager
def viewer(
    scheduler: Scheduler, endpoint: str, *, joins_late: bool = False
) -> Iterator[tuple[Session, Watch]]:
    """A viewer of a scheduler that had no viewer before, and perhaps requests."""
    assert follow(scheduler, PublisherSettings(bind=endpoint)) is not None
    watch = Watch(joins_late=joins_late)
    session = Session(endpoint)
    session.add_listener(watch.note)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        if joins_late:
            # A viewer that was there before the publisher got them sees a gap, and requests them.
            ids = {name(request) for request in scheduler.requests.values()}
            wait_until(lambda: session.state.requests.keys() >= ids)
        yield session, watch
        assert watch.findings == []
    scheduler.shutdown()


def name(request: Request) -> str:
    return request.request_id[:-9]


def catch_up(session: Session, scheduler: Scheduler) -> None:
    """Wait for the last step, and the ends that are published after it."""

    def there() -> bool:
        num_left = sum(request.finish_reason is None for request in session.state.requests.values())
        is_last = session.state.step == scheduler.num_updates - 1
        return is_last and num_left == len(scheduler.requests)

    wait_until(there)


def step_and_assert_shows(session: Session, scheduler: Scheduler, num_steps: int = 1) -> None:
    for _ in range(num_steps):
        num_updates = scheduler.num_updates
        step(scheduler)
        if scheduler.num_updates > num_updates:  # else nothing is published
            catch_up(session, scheduler)
            assert_shows(session, scheduler)


def assert_shows(session: Session, scheduler: Scheduler) -> None:
    with session.lock:
        state = session.state
        assert state.num_anomalies == 0, state.last_anomaly
        unfinished = {
            request_id for request_id in state.requests if request_id not in state.finished
        }
        assert unfinished == {name(request) for request in scheduler.requests.values()}
        for request in scheduler.requests.values():
            sequence = state.sequences[state.requests[name(request)].seq_ids[0]]
            status = request.status.name
            if not SequenceStatus.is_finished(sequence.status):
                is_running = request.status is RequestStatus.RUNNING
                assert sequence.status is SequenceStatus["RUNNING" if is_running else "WAITING"]
                assert sequence.engine_status == ("" if status in PLAIN else status)
            else:
                assert sequence.status.name == status
            num_computed = min(request.num_computed_tokens, request.num_tokens)
            assert sequence.num_computed_tokens == num_computed
            assert sequence.block_table == scheduler.table(request.request_id)
            assert sequence.output_token_ids == request.tokens[request.num_prompt_tokens :]
        view = SequenceView()
        view.rebuild(state)
        queue = [state.sequences[seq_id].request_id for seq_id in view.queue.ids]
        assert queue == [
            name(request) for request in (*scheduler.kv_holding_waiting, *scheduler.waiting)
        ]
        assert state.stats is not None
        assert state.stats.num_prefill_tokens == scheduler.num_prefill_tokens
        free = list(scheduler.pool.free_queue)
        cached = sum(block.block_hash is not None for block in free)
        assert state.stats.num_cached_blocks == cached
        assert state.stats.num_free_blocks == len(free) - cached
        assert state.stats.num_used_blocks == scheduler.pool.num_gpu_blocks - 1 - len(free)


@pytest.mark.parametrize("kind", [Scheduler, AsyncScheduler, PipelinedScheduler])
def test_viewer_shows_the_scheduler_at_every_step(kind: type[Scheduler], endpoint: str) -> None:
    scheduler = kind(num_gpu_blocks=14)
    with viewer(scheduler, endpoint) as (session, watch):
        for number in range(8):
            prompt = SHARED + [number] * (number + 1)
            # Every other one stops, in async scheduling while its next step is in flight.
            stops = [1_006] if number % 2 else []
            last = Request(f"cmpl-{number}-0-{number:08x}", prompt, 12, stops)
            scheduler.add_request(last)
        while scheduler.requests:
            step_and_assert_shows(session, scheduler)
            if scheduler.num_updates % 3 == 0:
                drain(scheduler)
            if last.request_id in scheduler.requests and scheduler.num_updates > 12:
                scheduler.finish_requests(last.request_id, RequestStatus.FINISHED_ABORTED)
        # vLLM makes one more, to tell its workers who ended.
        step_and_assert_shows(session, scheduler, 1 + scheduler.num_steps_ahead)
        state = session.state
        assert watch.num_members > 2 * watch.num_whole_tables, "most of it is plain decodes"
        reasons = [request.finish_reason for request in state.requests.values()]
        assert reasons == ["length", "stop", "length", "stop", "length", "stop", "length", "abort"]
        preempted = [request for request in state.requests.values() if request.num_preemptions]
        assert preempted, "the pool was meant to be too small"
        assert {request.preempted_for for request in preempted} <= state.requests.keys()
        assert all(request.num_lost_tokens for request in preempted)
        assert state.stats is not None
        assert state.stats.prefix_cache_hits > 0, "the prompts were meant to share a prefix"
        metrics = state.requests["cmpl-0-0"].metrics
        assert metrics.first_token_time is not None
        assert metrics.time_in_queue is not None
        assert metrics.model_forward_time is None
        scheduler.shutdown()
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)


def test_kinds_of_waiting_are_told(endpoint: str) -> None:
    scheduler, request = Scheduler(), Request("guided-00000000", SHARED, 2)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    with viewer(scheduler, endpoint) as (session, _):
        scheduler.add_request(Request("plain-00000000", SHARED, 3))
        scheduler.add_request(request)
        step_and_assert_shows(session, scheduler)
        request.status = RequestStatus.WAITING
        step_and_assert_shows(session, scheduler)
        assert request.status is RequestStatus.RUNNING


def test_reasons_hold_until_the_scheduler_is_called_again(endpoint: str) -> None:
    """The outputs of several steps in flight are processed before the next call of `schedule`."""
    scheduler = PipelinedScheduler(max_num_seqs=1)
    with viewer(scheduler, endpoint) as (session, _):
        for number in range(2):
            scheduler.add_request(Request(f"r{number}-00000000", SHARED, 9))
        step_and_assert_shows(session, scheduler, 4)
        assert len(scheduler.in_flight) > 1
        drain(scheduler)
        catch_up(session, scheduler)
        assert reason(session) == ("r1", "seq_limit")


def reason(session: Session) -> tuple[str, str]:
    """The request that the last step gave a reason to wait, and the reason."""
    (request_id,) = session.state.wait_reason_ids
    wait_reason = session.state.requests[request_id].wait_reason
    assert wait_reason is not None
    return request_id, wait_reason.cause


def test_tables_lose_blocks_outside_of_a_window(endpoint: str) -> None:
    scheduler = Scheduler(window=8)
    with viewer(scheduler, endpoint) as (session, _):
        scheduler.add_request(Request("one-00000000", SHARED, 30))
        while scheduler.requests:
            step_and_assert_shows(session, scheduler)
            if scheduler.num_updates == 16:
                (sequence,) = session.state.sequences.values()
                assert sequence.block_table[:2] == [0, 0]


@pytest.mark.parametrize(
    "cause", ["paused", "seq_limit", "token_budget", "lora_slots", "no_blocks"]
)
def test_the_reason_to_wait_is_the_schedulers(cause: str, endpoint: str) -> None:
    scheduler = Scheduler(
        num_gpu_blocks=8 if cause == "no_blocks" else 64,
        max_num_seqs=1 if cause == "seq_limit" else 4,
        budget=len(SHARED) if cause == "token_budget" else 64,
        max_loras=1,
    )
    requests = [
        Request(f"{letter}-00000000", [number, *SHARED[1:]], 9)
        for number, letter in enumerate("ab")
    ]
    if cause != "no_blocks":  # with one slot, what another limit has stopped is not examined
        for number, request in enumerate(requests, start=1):
            request.lora_request = SimpleNamespace(lora_int_id=number, lora_name=f"poems{number}")
    if cause == "no_blocks":
        requests[1] = Request("b-00000000", [1, *SHARED[1:], *[7] * 12], 9)
    with viewer(scheduler, endpoint) as (session, _):
        for request in requests:
            scheduler.add_request(request)
        if cause == "paused":
            scheduler._pause_state = PauseState.PAUSED_NEW
        step(scheduler)
        catch_up(session, scheduler)
        assert reason(session) == ("a" if cause == "paused" else "b", cause)
        loras = [request.lora for request in session.state.requests.values()]
        assert loras == (["", ""] if cause == "no_blocks" else ["poems1", "poems2"])
        assert session.state.stats is not None
        assert session.state.stats.num_used_loras == (cause not in ("no_blocks", "paused"))


def test_the_reason_of_the_first_that_waits_for_its_turn_is_given(endpoint: str) -> None:
    scheduler = Scheduler(max_num_seqs=1)
    with viewer(scheduler, endpoint) as (session, _):
        for letter in "abc":
            request = Request(f"{letter}-00000000", SHARED, 9)
            if letter == "b":
                request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            scheduler.add_request(request)
        step_and_assert_shows(session, scheduler)
        assert reason(session) == ("c", "seq_limit")


def test_cuda_graphs_are_those_of_the_runner(endpoint: str) -> None:
    class Output(dict[str, int]):
        cudagraph_stats = SimpleNamespace(
            runtime_mode="FULL", num_unpadded_tokens=12, num_padded_tokens=16
        )

    scheduler = Scheduler()
    with viewer(scheduler, endpoint) as (session, _):
        scheduler.add_request(Request("one-00000000", SHARED, 1))
        output = scheduler.schedule()
        scheduler.update_from_output(output, Output({"one-00000000": 7}))
        catch_up(session, scheduler)
        assert session.state.stats is not None
        graph = session.state.stats.cuda_graph
        assert graph == CudaGraph(mode="FULL", num_tokens=12, num_padded_tokens=16)


def test_a_streaming_session_gets_input_while_it_waits_and_before(endpoint: str) -> None:
    scheduler = Scheduler()

    def add(prompt: list[int], *, resumable: bool = True) -> None:
        request = Request("one-00000000", prompt, 3)
        request.resumable = resumable
        scheduler.add_request(request)

    with viewer(scheduler, endpoint) as (session, _):
        add(SHARED)
        add([1, 2, 3])
        for _ in range(4):
            step(scheduler)
            catch_up(session, scheduler)
        (request,) = session.state.requests.values()
        wait_until(lambda: request.num_prompt_tokens == len(SHARED) + 2 + 3)
        assert list(request.prompt_token_ids) == scheduler.requests["one-00000000"].prompt_token_ids
        step_and_assert_shows(session, scheduler, 3)
        (sequence,) = session.state.sequences.values()
        assert sequence.engine_status == "WAITING_FOR_STREAMING_REQ"
        assert request.metrics.arrival_time < scheduler.requests["one-00000000"].arrival_time
        add([4, 5])
        wait_until(lambda: sequence.engine_status == "")
        assert request.renewed_arrival_time == scheduler.requests["one-00000000"].arrival_time
        step_and_assert_shows(session, scheduler, 3)
        add([], resumable=False)
        step(scheduler)
        catch_up(session, scheduler)
        assert list(session.state.requests) == ["one"], "no ghost"
        assert request.finish_reason == "abort"


def test_blocks_that_a_connector_fills_and_holds_have_an_owner(endpoint: str) -> None:
    scheduler = Scheduler()
    scheduler.connector = object()
    with viewer(scheduler, endpoint) as (session, _):
        request = Request("one-00000000", SHARED, 2)
        scheduler.add_request(request)
        step_and_assert_shows(session, scheduler, 2)
        (sequence,) = session.state.sequences.values()
        assert sequence.engine_status == "WAITING_FOR_REMOTE_KVS"
        assert len(sequence.block_table) == 3
        scheduler.finished_recving_kv_req_ids.add(request.request_id)
        step_and_assert_shows(session, scheduler, 2)
        assert sequence.num_external_tokens == sequence.num_cached_tokens == len(SHARED) - 1
        assert session.state.stats is not None
        assert session.state.stats.prefix_cache_hits == 0, "the connector's are not its own"
        assert sequence.status is SequenceStatus.FINISHED_LENGTH_CAPPED
        assert sequence.block_table
        scheduler._free_blocks(request)
        step(scheduler)
        wait_until(lambda: "one" in session.state.finished)
        assert sequence.block_table == []


@pytest.mark.parametrize("num_leaked", [0, 2])
def test_blocks_that_are_freed_after_the_steps_in_flight_have_not_leaked(
    num_leaked: int, endpoint: str
) -> None:
    scheduler = AsyncScheduler(num_gpu_blocks=40)
    scheduler.defer_block_free = True
    with viewer(scheduler, endpoint) as (session, watch):
        for number in range(8):
            prompt = SHARED + [number] * (number + 1)
            stops = [1_000 + number]  # while its next step is in flight
            scheduler.add_request(Request(f"{number}-{number:08x}", prompt, 12, stops))
        most = 0
        while scheduler.requests or scheduler.deferred_frees:
            if scheduler.num_updates == 6 and num_leaked:
                scheduler.pool.get_new_blocks(num_leaked)
            step_and_assert_shows(session, scheduler)
            most = max(most, session.state.stats.num_late_blocks if session.state.stats else 0)
        step_and_assert_shows(session, scheduler, 2)
        assert most > 1
        assert session.state.stats is not None
        assert session.state.stats.num_late_blocks == 0
        wait_until(lambda: len(watch.findings) == (num_leaked > 0))
        assert [finding.rule for finding in watch.findings] == ["block-leak"] * (num_leaked > 0)
        watch.findings.clear()


def test_an_id_that_is_used_again_is_another_request(endpoint: str) -> None:
    scheduler = Scheduler()
    with viewer(scheduler, endpoint) as (session, _):
        for number in range(3):
            scheduler.add_request(Request("one-00000000", [number] * 5, 4))
            if number < 2:
                step(scheduler)
                scheduler.finish_requests("one-00000000", RequestStatus.FINISHED_ABORTED)
        while scheduler.requests:
            step(scheduler)
        wait_until(lambda: len(session.state.finished) == 3)
        state = session.state
        assert state.num_anomalies == 0, state.last_anomaly
        assert {
            request_id: (
                request.finish_reason,
                len(state.sequences[request.seq_ids[0]].text_lengths),
            )
            for request_id, request in state.requests.items()
        } == {
            "one": ("abort", 1),
            "one-00000000": ("abort", 1),
            "one-00000000-2": ("length", 4),
        }


def test_a_load_that_fails_takes_tokens_back(endpoint: str) -> None:
    scheduler = Scheduler()
    scheduler.connector = object()
    with viewer(scheduler, endpoint) as (session, _):
        request = Request("one-00000000", SHARED, 2)
        scheduler.add_request(request)
        for _ in range(2):
            step_and_assert_shows(session, scheduler)
            request.num_computed_tokens = 4
        assert session.state.sequences[0].engine_status == "WAITING_FOR_REMOTE_KVS"


def test_a_readmission_is_no_prefix_hit(endpoint: str) -> None:
    scheduler = Scheduler(num_gpu_blocks=17)
    with viewer(scheduler, endpoint) as (session, _):
        prompts = [Request(f"{number}-00000000", [number] * 12, 30) for number in range(2)]
        for request in prompts:
            scheduler.add_request(request)
        while scheduler.requests:
            step(scheduler)
            catch_up(session, scheduler)
        assert any(request.num_preemptions for request in session.state.requests.values())
        assert session.state.stats is not None
        assert session.state.stats.prefix_cache_queries == 24
        assert session.state.stats.prefix_cache_hits == 0
