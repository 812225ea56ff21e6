"""Two viewers, one early and one late, against the engine's own objects after every step."""

import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from seqtop.live.connection import ConnectionState
from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.transport import publisher as publisher_module
from seqtop.wire.messages import Event
from seqtop.wire.snapshot import Snapshot
from tests.support.shown import CountingPublisher, assert_shows, catch_up
from tests.support.waiting import SECONDS, wait_until

PROMPTS = (
    "Once upon a time",
    "You are a storyteller. You like rivers, lanterns and bread.\n\nUser: Tell me about a fox.",
    "You are a storyteller. You like rivers, lanterns and bread.\n\nUser: Tell me about a kite.",
    "Why? " * 60,
    "def main():",
    "Hello there",
)
BEAMS = BeamSearchParams(beam_width=3, max_tokens=40, ignore_eos=True)


MORE = pytest.mark.release("more of the same kind")


@pytest.fixture(params=["swap", pytest.param("recompute", marks=MORE)])
def engine(request: pytest.FixtureRequest) -> LLMEngine:
    return LLMEngine(
        EngineConfig(
            device="cpu",
            num_gpu_blocks=28,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=256,
            preemption_mode=request.param,
        )
    )


@pytest.fixture
def publisher(engine: LLMEngine) -> Iterator[CountingPublisher]:
    info = engine_info(engine, engine_id="test", control=False)
    # No heartbeats: each message is one that the test counts.
    info = msgspec.structs.replace(info, heartbeat_interval=1e6)
    with tempfile.TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{Path(directory, 'e')}"
        running = CountingPublisher(endpoint, info, EngineState())
        with running:
            yield running


def test_both_show_the_engine_at_every_step(
    engine: LLMEngine, publisher: CountingPublisher
) -> None:
    steps = StepPublisher(publisher)

    def add(name: str, prompt: str, **params: Any) -> None:
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, **params)
        for group in engine.add_request(name, prompt, sampling):
            steps.arrived(group)

    with ExitStack() as stack:
        early = stack.enter_context(Session(publisher.endpoint))
        viewers = [early]
        assert early.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for number, prompt in enumerate(PROMPTS):
            add(f"req-{number}", prompt, max_tokens=90, logprobs=2 if number == 0 else None)
        for group in engine.add_request("beams", PROMPTS[0], BEAMS):
            steps.arrived(group)
        seen_preemption = seen_cached = seen_fork = False
        while engine.has_unfinished_requests():
            record = engine.step()
            steps.stepped(record)
            seen_preemption |= bool(record.preemptions)
            seen_fork |= any(update.parent_seq_id is not None for update in record.updates)
            seen_cached |= record.blocks.prefix_hits > 0
            if record.step == 20:
                viewers.append(stack.enter_context(Session(publisher.endpoint)))
                assert viewers[-1].wait_for(ConnectionState.LIVE, timeout=SECONDS)
            for session in viewers:
                catch_up(session, publisher)
                assert_shows(session, engine, record)
            if record.step == 40:
                assert engine.abort_request("req-5")
        _, late = viewers
        with early.lock, late.lock:
            assert early.state == late.state
            assert early.state.requests["req-5"].finish_reason == "abort"
            assert len(early.state.finished) == len(PROMPTS) + 1
            assert len(early.state.requests["beams"].seq_ids) == BEAMS.beam_width
        assert seen_fork
        assert seen_preemption, "the pool was meant to be too small"
        assert seen_cached, "the prompts were meant to share a prefix"
        assert early.connection.num_missed == late.connection.num_missed == 0


def test_late_viewer_shows_the_engine(engine: LLMEngine, publisher: CountingPublisher) -> None:
    steps = StepPublisher(publisher)
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=60)
    for number, prompt in enumerate(PROMPTS):
        for group in engine.add_request(f"req-{number}", prompt, sampling):
            steps.arrived(group)
    num_viewers = 0
    while engine.has_unfinished_requests():
        record = engine.step()
        steps.stepped(record)
        if record.step % 10 == 9:
            num_viewers += 1
            with Session(publisher.endpoint) as session:
                session.await_engine(SECONDS)
                catch_up(session, publisher)
                assert_shows(session, engine, record)
    assert num_viewers > 5


def test_viewer_shows_the_engine_again_after_its_queue_has_overflowed(
    engine: LLMEngine, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    """Arrivals, preemptions and ends are lost before they are numbered; all is well afterwards."""
    monkeypatch.setattr(publisher_module, "MAX_QUEUED_BYTES", 20_000)
    monkeypatch.setattr(publisher_module, "_SECONDS_BETWEEN_REPAIRS", 0.0)
    opened, is_held_up = threading.Event(), threading.Event()
    opened.set()

    class Replica(EngineState):
        def apply(self, event: Event | Snapshot) -> Iterable[int]:
            if not opened.is_set():
                is_held_up.set()
                opened.wait()
            return super().apply(event)

    info = engine_info(engine, engine_id="test", control=False)
    info = msgspec.structs.replace(info, heartbeat_interval=1e6)
    publisher = CountingPublisher(endpoint, info, Replica(), repairs=True)
    with publisher, Session(endpoint) as session:
        steps = StepPublisher(publisher)

        def add(name: str, prompt: str) -> None:
            params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=70, logprobs=1)
            for group in engine.add_request(name, prompt, params):
                steps.arrived(group)

        def play(num_steps: int, *, shown: bool) -> None:
            for _ in range(num_steps):
                record = engine.step()
                steps.stepped(record)
                if shown:
                    catch_up(session, publisher)
                    assert_shows(session, engine, record)

        session.await_engine(SECONDS)
        for number, prompt in enumerate(PROMPTS[:4]):
            add(f"early-{number}", prompt)
        play(20, shown=True)
        assert session.state.requests.keys() == engine.seq_groups.keys()
        opened.clear()
        play(1, shown=False)
        assert is_held_up.wait(SECONDS)
        play(30, shown=False)
        for number, prompt in enumerate(PROMPTS[4:] * 2):
            add(f"lost-{number}", prompt)
        engine.abort_request("early-0")
        play(40, shown=False)
        assert publisher.num_dropped > 20
        assert engine.seq_groups.keys() - session.state.requests.keys()
        opened.set()
        wait_until(publisher.needs_snapshot)
        publisher.publish(steps.snapshot(engine.clock(), engine.block_manager.get_block_table))
        play(10, shown=True)
        while engine.has_unfinished_requests():
            play(1, shown=True)
        assert session.connection.num_missed > 20
        assert session.connection.num_resyncs == 1
