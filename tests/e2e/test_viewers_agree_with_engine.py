"""Two viewers, one early and one late, against the engine's own objects after every step."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from tests.support.shown import CountingPublisher, assert_shows, catch_up
from tests.support.waiting import SECONDS

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
