"""A source whose events are written by hand, and a scene with one of everything."""

import threading
from collections.abc import Callable
from typing import Any

from seqtop.history.memory_store import MemoryStore
from seqtop.process.observable import Observable
from seqtop.sequence import (
    SamplingParams,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.state.finished import FinishedMemory
from seqtop.state.listener import Listener, StateChange
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.wire import codec
from seqtop.wire.messages import (
    EngineInfo,
    EngineSummary,
    Event,
    StepStats,
    WaitReason,
)
from tests.support import events
from tests.support.simulated_engine import (
    BLOCK_SIZE,
    START,
    SimulatedEngine,
    SimulatedRequest,
)

STEP_TIME = 0.05

HOSTILE = (
    "\x1b]52;c;cm0gLXJmIC8=\x07\x1b[2J\x1b[31m[bold red]not markup[/] "
    "\x9b2J\u202egnp.exe\u202c a\u0301\u0302\u0303\u0304\u0305\u0306\r\nrm -rf\x7f\x00  end"
)
CJK = "昔々あるところに、小さな狐が住んでいました。한국어도 있습니다。 毎日森を歩いて"
MIXED = "Family 👨‍👩‍👧 flag 🇩🇪 wave 👋🏽 heart ❤️ שלום עולם مرحبا بالعالم e\u0301te\u0301 "
STORY = (
    "Once upon a time there was a little fox named Pip. Pip lived at the edge of the wood and "
    "wanted to see the sea. One day a wise old owl said: follow the river, it knows the way. "
).split(" ")


def engine_info(**changes: Any) -> EngineInfo:
    values: dict[str, Any] = {
        "engine_id": "demo",
        "incarnation": "a1",
        "engine": "engine_stub 0.1.0",
        "model": "stories-3m",
        "dtype": "float32",
        "device": "cpu",
        "start_time": START,
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": 256,
        "num_cpu_blocks": None,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "max_model_len": 2048,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "preemption_mode": "recompute",
        "control": True,
        **changes,
    }
    return events.engine_info(**values)


class ScriptedSource(Observable):
    """A `Source` whose events a test applies; records the commands that it is given."""

    def __init__(
        self, *events: Event, max_finished: int = 1_000, history: MemoryStore | None = None
    ) -> None:
        super().__init__()
        self.history = MemoryStore() if history is None else history
        self.state = EngineState(max_finished=max_finished)
        self.finished_memory = FinishedMemory()
        self.lock = threading.RLock()
        self.name = ""
        self.connection = Connection("ipc:///run/demo", ConnectionState.LIVE)
        self.summary: EngineSummary | None = None
        self.is_subscribed = True
        self.number = 0
        """Of the next message."""
        self.submitted: list[tuple[str, SamplingParams]] = []
        self.aborted: list[str] = []
        self.error: Exception | None = None
        self.after_event: Callable[[], object] | None = None
        """Called after each event, as a timer would be in between."""
        self.listeners: list[Listener] = [self.history.record]
        for event in events:
            self.apply(event)

    def apply(self, event: Event) -> None:
        with self.lock:
            touched = self.state.apply(event)
            change = StateChange(self.state, touched, event, codec.encode(event), self.number)
            self.number += 1
            self.connection.num_messages += 1
            self._publish(change)
        self.history.end_segment(self.state)
        if self.after_event is not None:
            self.after_event()

    def replace(self, state: EngineState, *, num_missed: int = 0) -> None:
        """Take a snapshot, after so many messages were missed."""
        with self.lock:
            self.number += num_missed
            self.state = state
            self._publish(self._replaced())

    def connect(self, state: ConnectionState, detail: str = "") -> None:
        with self.lock:
            self.connection.state, self.connection.detail = state, detail
            self.changed()

    def touch(self, touched: set[int]) -> None:
        """Reports sequences that a test has changed."""
        with self.lock:
            self._publish(StateChange(self.state, touched))

    def set_subscribed(self, is_subscribed: bool) -> None:
        self.is_subscribed = is_subscribed

    def add_listener(self, listener: Listener) -> None:
        with self.lock:
            listener(self._replaced())
            self.listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        with self.lock:
            self.listeners.remove(listener)

    def _replaced(self) -> StateChange:
        incarnation = self.state.info.incarnation if self.state.info else ""
        return StateChange(
            self.state, None, sequence_number=self.number - 1, incarnation=incarnation
        )

    def _publish(self, change: StateChange) -> None:
        for listener in self.listeners:
            listener(change)
        self.changed()

    def submit(self, prompt: str, params: SamplingParams) -> str:
        if self.error is not None:
            raise self.error
        self.submitted.append((prompt, params))
        return f"new-{len(self.submitted)}"

    def abort(self, request_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.aborted.append(request_id)


class Script:
    """Writes an engine's events, step by step.

    Attributes:
        actors: The requests by id.
        paced_time: The seconds for which the engine waits on purpose before a step.
    """

    def __init__(self, source: ScriptedSource, *, tells_cached: bool = False, **info: Any) -> None:
        self.source = source
        self.engine = SimulatedEngine(
            engine_info(**info), publishes_cache=tells_cached, sends_full=False
        )
        self.actors: dict[str, SimulatedRequest] = {}
        self.paced_time = 0.0
        self._pieces: dict[str, list[str]] = {}
        """The texts of the tokens of a request, again and again."""
        source.apply(self.info)

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def number(self) -> int:
        """The number of the next step."""
        return self.engine.number

    @number.setter
    def number(self, number: int) -> None:
        self.engine.number = number

    @property
    def time(self) -> float:
        return self.engine.time

    @time.setter
    def time(self, time: float) -> None:
        self.engine.time = time

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.engine.running]

    def arrive(
        self,
        name: str,
        prompt: str = "Tell me a story about a fox.",
        *,
        num_prompt: int = 40,
        n: int = 1,
        priority: int = 0,
        max_tokens: int = 64,
        pieces: list[str] | None = None,
    ) -> SimulatedRequest:
        params = SamplingParams(n=n, max_tokens=max_tokens, temperature=0.8)
        actor, arrived = self.engine.arrive(
            name, prompt, params, num_prompt=num_prompt, n=n, priority=priority
        )
        self.actors[name] = actor
        self._pieces[name] = pieces or [word + " " for word in STORY]
        self.source.apply(arrived)
        self.time += 0.002
        return actor

    def step(
        self,
        *,
        prefill: dict[str, int] | None = None,
        decode: list[str] | None = None,
        share: dict[str, str] | None = None,
        preempt: dict[str, str] | None = None,
        waits: list[WaitReason] | None = None,
        stop: dict[str, SequenceStatus] | None = None,
        seconds: float = STEP_TIME,
    ) -> None:
        """One step: `prefill` chunks, one token each for `decode` (default: all that run)."""
        engine, chunks, ends = self.engine, prefill or {}, stop or {}
        engine.begin_step(seconds)
        for name, by in (preempt or {}).items():
            engine.preempt(self.actors[name], by, "recompute")
        for name, owner in (share or {}).items():
            engine.share(self.actors[name], self.actors[owner], 2)
        decoding = [name for name in self.running if name not in chunks]
        decoding = decoding if decode is None else decode
        for name, chunk in [*chunks.items(), *((name, 1) for name in decoding)]:
            self._run(self.actors[name], chunk, name in chunks, ends.get(name))
        self.source.apply(
            engine.end_step(self._figures(sum(chunks.values()), len(decoding)), waits)
        )
        for name, status in ends.items():
            self.finish(name, status)

    def stats(self, num_prefill: int, num_decode: int) -> StepStats:
        """Returns the figures of a step that computes so many tokens now."""
        return self.engine.count(self._figures(num_prefill, num_decode))

    def finish(self, name: str, status: SequenceStatus) -> None:
        self.source.apply(self.engine.finish(self.actors[name], status))

    def _run(
        self, actor: SimulatedRequest, chunk: int, is_prompt: bool, end: SequenceStatus | None
    ) -> None:
        engine = self.engine
        if actor in engine.waiting:
            engine.admit(actor)
        samples = not is_prompt or actor.computed + chunk >= actor.total
        engine.schedule(actor, chunk, is_prompt=is_prompt, samples=samples)
        engine.grow(actor, actor.computed)
        for seq in actor.seqs:
            token = None
            if samples:
                number = len(seq.outputs)
                pieces = self._pieces[actor.request_id]
                token = number + 1, -0.5, pieces[number % len(pieces)]
            engine.sample(actor, seq, token, end)

    def _figures(self, num_prefill: int, num_decode: int) -> StepStats:
        figures = events.stats(
            num_prefill_tokens=num_prefill,
            num_decode_tokens=num_decode,
            scheduler_time=0.0006,
            model_forward_time=0.038,
            model_execute_time=0.044,
            paced_time=self.paced_time,
        )
        if self.engine.cached is None:  # a plausible number
            figures.num_cached_blocks = min(self.number // 4, self.engine.num_available)
        return figures


def scene(
    source: ScriptedSource, *, hostile: str = HOSTILE, tells_cached: bool = False, **info: Any
) -> Script:
    """Play about three seconds at whose end there is a request in every state."""
    script = Script(source, tells_cached=tells_cached, **info)
    script.arrive("req-1")
    script.arrive("req-2", "Tell me a story about a fox and an owl.", num_prompt=48)
    script.arrive("req-3", "狐の物語を話してください。", num_prompt=24, pieces=list(CJK))
    script.arrive("req-4", "Write in many scripts: שלום", num_prompt=20, pieces=list(MIXED))
    script.arrive("req-5", "Ignore all that and \x1b[2J", num_prompt=20, pieces=[hostile])
    script.arrive("done-1", "Short.", num_prompt=12)
    script.arrive("done-2", "Two words.", num_prompt=12, max_tokens=8)
    script.arrive("done-3", "Never mind.", num_prompt=30)
    script.arrive("done-4", "A prompt far too long " * 40, num_prompt=4096)
    script.finish("done-4", SequenceStatus.FINISHED_IGNORED)
    script.step(prefill={"req-1": 40, "done-1": 12, "done-2": 12})
    script.step(prefill={"req-2": 16, "req-3": 24, "req-4": 20}, share={"req-2": "req-1"})
    script.step(prefill={"req-5": 20, "done-3": 30})
    for _ in range(4):
        script.step()
    script.step(stop={"done-2": SequenceStatus.FINISHED_LENGTH_CAPPED})
    script.arrive("req-7", "Tell me about a bear who bakes.", num_prompt=60)
    script.step(prefill={"req-7": 60}, stop={"done-1": SequenceStatus.FINISHED_STOPPED})
    for _ in range(18):
        script.step()
    script.arrive("pair", "Two endings, please.", num_prompt=32, n=2)
    script.arrive("req-6", "Summarise this long report: " + "lorem ipsum " * 60, num_prompt=1900)
    script.step(prefill={"pair": 32})
    for _ in range(6):
        script.step(prefill={"req-6": 240}, decode=["req-1", "req-2", "req-3", "req-4"])
    script.finish("done-3", SequenceStatus.FINISHED_ABORTED)
    script.step(prefill={"req-6": 240}, preempt={"req-7": "req-6"})
    script.arrive("req-8", "Tell me about a bear and a bee.", num_prompt=120)
    script.arrive("req-9", "Describe the sea in one line.", num_prompt=90)
    script.arrive("req-10", "What does the river know?", num_prompt=25, priority=1)
    script.arrive("chat-b7f39a2c-11", "And then what happened?", num_prompt=33, priority=2)
    waits = [
        events.wait_reason("req-7", "no_blocks", 3),
        events.wait_reason("req-8", "token_budget", 88),
        events.wait_reason("req-9", "seq_limit"),
    ]
    for _ in range(6):
        script.step(
            prefill={"req-6": 20}, decode=["req-1", "req-2", "req-3", "req-4", "pair"], waits=waits
        )
    return script
