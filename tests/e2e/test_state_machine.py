"""Any run of the bundled engine under any faults, as all who look at it see it.

The engine has any limits and policies, gets any requests, and is restarted. Its publisher loses
messages, and so does the wire. What holds at each moment of rest: a viewer knows what the engine
knows; a check finds nothing; greedy requests get the tokens of `transformers`; a recording has the
state after each message; what was redacted has no word of a text; memory is bounded.
"""

from __future__ import annotations

import contextlib
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from engine_stub.config import EngineConfig, PreemptionVictim
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.processing.input_processor import Params
from engine_stub.processing.tokenizer import Tokenizer
from engine_stub.step_record import StepRecord
from seqtop.checks.live_checker import LiveChecker
from seqtop.history import FileStore, FileWriter, segments
from seqtop.history.memory_store import MemoryStore
from seqtop.history.recorder import Recorder
from seqtop.history.timeline import Cursor
from seqtop.live.session import Session
from seqtop.sequence import PoolingParams, SamplingParams, SequenceGroup, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.transport import publisher as publisher_module
from seqtop.transport.connection import ConnectionState
from seqtop.transport.outbound_queue import QueueFullError
from seqtop.wire import codec
from seqtop.wire.messages import Heartbeat, PreemptionMode
from tests.support.checkpoints import add_draft_head, generate, make_checkpoint
from tests.support.fault_proxy import HARMLESS, FaultProxy, Faults
from tests.support.recordings import assert_same, unpacked
from tests.support.shown import CountingPublisher, assert_shows, is_current
from tests.support.waiting import SECONDS

MAX_MODEL_LEN = 80
MAX_TOKENS = 14
MAX_BYTES = 30_000
"""Of the viewer's history."""
SEGMENT_BYTES = 8_000
SECRET = "the quixotic xylophone "
PROMPTS = [SECRET + end for end in ("", "hums", "of the north wind plays on", "hums a tune")]
PROMPTS += [PROMPTS[1] * 2, "a river " * 3]

SETTINGS = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 4, 16]),
        "max_num_seqs": st.integers(1, 8),
        "num_cpu_blocks": st.sampled_from([0, 6, 30]),
        "preemption_mode": st.sampled_from(get_args(PreemptionMode)),
        "preemption_victim": st.sampled_from(get_args(PreemptionVictim)),
        "enable_chunked_prefill": st.booleans(),
        "enable_prefix_caching": st.booleans(),
    }
)
LOOKAHEADS = st.one_of(
    st.just({}),
    st.builds(lambda steps: {"num_scheduler_steps": steps}, st.integers(2, 6)),
    st.builds(
        lambda kind, tokens: {"speculative": kind, "num_speculative_tokens": tokens},
        st.sampled_from(["ngram", "draft-head"]),
        st.integers(1, 5),
    ),
)
GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
SEEDS = st.integers(0, 9)
PARAMS = st.one_of(
    st.just(GREEDY),
    st.builds(
        lambda n, seed, logprobs: SamplingParams(
            n=n, seed=seed, logprobs=logprobs, max_tokens=9, stop_token_ids=[seed * 25]
        ),
        st.integers(1, 3),
        SEEDS,
        st.sampled_from([None, 2]),
    ),
    st.builds(
        lambda width, early: BeamSearchParams(beam_width=width, max_tokens=9, early_stopping=early),
        st.integers(1, 3),
        st.sampled_from([True, False, "never"]),
    ),
    st.just(PoolingParams()),
)
FAULTS = st.sampled_from(
    [Faults(drop=0.3), Faults(duplicate=0.3), Faults(truncate=0.3), Faults(flip=0.3)]
)


class Machine(RuleBasedStateMachine):
    model: ClassVar[Path]
    expected: ClassVar[list[list[int]]]
    """The greedy output of each of `PROMPTS`."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.num_starts = 0
        self.live: list[bytes] = []
        """The state after each position of the recording."""

    @initialize(
        limits=SETTINGS,
        lookahead=LOOKAHEADS,
        num_tokens_in_pool=st.integers(MAX_MODEL_LEN, 3 * MAX_MODEL_LEN),
        extra_budget=st.integers(0, 40),
        seed=SEEDS,
    )
    def begin(
        self,
        limits: dict[str, Any],
        lookahead: dict[str, Any],
        num_tokens_in_pool: int,
        extra_budget: int,
        seed: int,
    ) -> None:
        least = 0 if limits["enable_chunked_prefill"] else MAX_MODEL_LEN
        self.config = EngineConfig(
            model=self.model,
            device="cpu",
            dtype="float32",
            max_model_len=MAX_MODEL_LEN,
            num_gpu_blocks=num_tokens_in_pool // limits["block_size"],
            max_num_batched_tokens=max(limits["max_num_seqs"] + extra_budget, least),
            **limits,
            **lookahead,
        )
        self.directory = Path(self.stack.enter_context(TemporaryDirectory(prefix="sq")))
        self.endpoint = f"ipc://{self.directory}/e"
        viewer = f"ipc://{self.directory}/v"
        self._start_engine()
        self.proxy = self.stack.enter_context(FaultProxy(self.endpoint, viewer, seed))
        self.session = Session(viewer, history=MemoryStore(max_bytes=MAX_BYTES))
        self.checker = LiveChecker(self.session)
        self.stack.enter_context(self.checker.running())
        self.recorder = Recorder(FileWriter(self.directory / "run.seqtop"))
        self.session.add_listener(self.recorder.record)
        self.session.add_listener(self._note)
        self.redacted = Session(self.endpoint, redact=True)
        self.redacted_recorder = Recorder(FileWriter(self.directory / "redacted.seqtop"))
        self.redacted.add_listener(self.redacted_recorder.record)
        for session in (self.session, self.redacted):
            self.stack.enter_context(session)
            self._catch_up(session)

    def _note(self, change: StateChange) -> None:
        self.live.append(codec.encode(change.state))

    def _start_engine(self) -> None:
        self.engine = LLMEngine(self.config)
        self.groups: list[tuple[SequenceGroup, int | None]] = []
        """Each with the number of its prompt, if it is greedy."""
        self.last: StepRecord | None = None
        self.num_starts += 1
        info = engine_info(self.engine, engine_id="test", control=False)
        # No heartbeats: each message is one that the test counts.
        info = msgspec.structs.replace(info, heartbeat_interval=1e6)
        self.publisher = CountingPublisher(self.endpoint, info, EngineState(), repairs=True)
        self.steps = StepPublisher(self.publisher)

    @rule(number=st.integers(0, len(PROMPTS) - 1), params=PARAMS, priority=st.integers(0, 1))
    def arrive(self, number: int, params: Params, priority: int) -> None:
        name = f"r{self.num_starts}-{len(self.groups)}"
        # Beams that could never run at once are refused.
        with contextlib.suppress(ValueError):
            groups = self.engine.add_request(name, PROMPTS[number], params, priority=priority)
            is_greedy = isinstance(params, SamplingParams) and params.temperature == 0
            for group in groups:
                self.groups.append((group, number if is_greedy else None))
                self.steps.arrived(group)

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            if not self.engine.has_unfinished_requests():
                return
            self.last = record = self.engine.step()
            self.steps.stepped(record)
            self.engine.block_manager.check()
            num_tokens = record.num_prefill_tokens + record.num_decode_tokens
            assert num_tokens <= self.config.max_num_batched_tokens
            assert record.num_running <= self.config.max_num_seqs
            for group in self.engine.seq_groups.values():
                unfinished = [seq for seq in group.seqs if not seq.is_finished()]
                for counts in (
                    {seq.status for seq in unfinished},
                    {seq.get_len() for seq in unfinished},
                    {seq.get_num_computed_tokens() for seq in unfinished},
                ):
                    assert len(counts) <= 1, "the samples of a group advance together"
            self._repair()

    def _repair(self) -> None:
        """Does what an engine does between two steps, also where it has nothing to run."""
        if self.publisher.needs_snapshot():
            snapshot = self.steps.snapshot(self.engine)
            if self.last is not None:
                snapshot.time = self.last.time  # what viewers show is compared with this step
            self.publisher.publish(snapshot)

    @rule(choice=SEEDS)
    def abort(self, choice: int) -> None:
        if self.groups:
            group, _ = self.groups[choice % len(self.groups)]
            self.engine.abort_request(group.request_id)
            self.step(1)  # viewers learn of it by a step

    @rule(faults=FAULTS, count=st.integers(1, 8))
    def lose_on_the_wire(self, faults: Faults, count: int) -> None:
        self.proxy.faults = faults
        self.step(count)

    @rule(count=st.integers(1, 8))
    def step_behind_a_cut(self, count: int) -> None:
        self.proxy.cut()
        self.step(count)

    @rule(count=st.integers(1, 8))
    def lose_in_the_queue(self, count: int) -> None:
        """The queue of the publisher is full during some steps, after which a request is left."""
        self.arrive(0, GREEDY, 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.publisher, "_require_room", _refuse)
            self.step(count)
        self.look()

    @rule()
    def restart(self) -> None:
        self.publisher.close("restarted")
        self.engine.close()
        self._start_engine()

    @rule()
    def look(self) -> None:
        """All is well again, and everybody learns everything."""
        self.proxy.faults = HARMLESS
        self.proxy.mend()
        if self.last is None:
            self.arrive(0, GREEDY, 0)
        self.step(1)
        self._repair()
        for session in (self.session, self.redacted):
            self._catch_up(session)
        assert_shows(self.session, self.engine, self.last)
        with self.session.lock:
            # What the wire made unreadable is found.
            assert self.checker.counts().keys() <= {"unreadable"}
            history = self.session.history
            assert len(history._segments) == 1 or history.num_bytes <= MAX_BYTES + SEGMENT_BYTES

    @rule()
    def join(self) -> None:
        self.step(1)
        if self.last is not None:
            with Session(self.endpoint) as late:
                late.await_engine(SECONDS)
                self._catch_up(late)
                assert_shows(late, self.engine, self.last)

    def _catch_up(self, session: Session) -> None:
        """Waits until a session has the last message; it learns of a gap by the next message."""
        deadline = time.monotonic() + SECONDS
        while not session.wait_until(lambda: is_current(session, self.publisher), 0.1):
            assert time.monotonic() < deadline, session.connection
            time_of_engine = self.last.time if self.last else 0.0
            step = self.last.step if self.last else -1
            self.publisher.publish(Heartbeat(time=time_of_engine, step=step))

    def teardown(self) -> None:
        if sys.exception() is not None:
            self.publisher.close("failed")
            self.engine.close()
            self.stack.close()
            return
        with self.stack:
            self._drain()
            self.publisher.close("the end")
            self.engine.close()
            for session in (self.session, self.redacted):
                # The last message is lost if the machine is too busy to send it in half a second.
                ends = ConnectionState.STOPPED, ConnectionState.LOST
                assert session.wait_for(*ends, timeout=SECONDS)
            for recorder in (self.recorder, self.redacted_recorder):
                recorder.close()
                assert recorder.error is None
            self._assert_recorded()
            self._assert_redacted()

    def _drain(self) -> None:
        for _ in range(5_000):
            if not self.engine.has_unfinished_requests():
                break
            self.step(1)
        assert not self.engine.has_unfinished_requests(), "a request starves"
        self.look()
        while self.engine.has_unfinished_requests():  # the one that a look needed
            self.step(1)
        stats = self.engine.block_manager.stats
        assert stats.used == 0
        assert stats.free + stats.cached == stats.total
        assert stats.free_cpu == stats.total_cpu
        assert self.engine.worker.seq_groups == {}
        for group, number in self.groups:
            if number is None:
                continue
            output = list(group.first_seq.get_output_token_ids())
            expected = self.expected[number]
            if group.first_seq.status is SequenceStatus.FINISHED_ABORTED:
                expected = expected[: len(output)]
            assert output == expected

    def _assert_recorded(self) -> None:
        """The recording has the state that the viewer had after each message."""
        with FileStore(self.directory / "run.seqtop") as recording:
            assert recording.damage is None
            assert recording.last == len(self.live) - 1
            cursor = Cursor(recording, 0)
            for position, payload in enumerate(self.live):
                cursor.move(position)
                assert_same(cursor.state, codec.decode(payload, EngineState))
            middle = recording.last // 2
            assert_same(recording.at(middle), codec.decode(self.live[middle], EngineState))

    def _assert_redacted(self) -> None:
        with_texts = unpacked(self.directory / "run.seqtop")
        without = unpacked(self.directory / "redacted.seqtop")
        texts = [seq.output_text for group, _ in self.groups for seq in group.seqs]
        for secret in (SECRET, *(text for text in texts if len(text) > 6)):
            assert secret.encode() not in without
        # A request that ran while all was lost is not recorded.
        shown = [request.prompt for request in self.session.state.requests.values()]
        assert all((prompt or "").encode() in with_texts for prompt in shown)


def _refuse(_size: int) -> None:
    raise QueueFullError("the queue is full")


def test_any_run_under_any_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_SECONDS_BETWEEN_REPAIRS", 0.0)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", SEGMENT_BYTES)
    Machine.model = add_draft_head(make_checkpoint("llama", tmp_path, hidden_size=32), 32)
    tokenizer = Tokenizer(Machine.model)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    Machine.expected = generate(Machine.model, prompts, MAX_TOKENS)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            # Ten, and more where a profile asks for more.
            max_examples=settings().max_examples // 6,
            stateful_step_count=20,
            suppress_health_check=list(HealthCheck),
        ),
    )
