"""A source whose events are written by hand, and a scene with one of everything."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from seqtop.history.memory_store import MemoryStore
from seqtop.live.connection import Connection, ConnectionState
from seqtop.process.observable import Observable
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SamplingParams,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceStage,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.state.listener import Listener, StateChange
from seqtop.wire import codec
from seqtop.wire.messages import (
    CachedBlocks,
    EngineInfo,
    Event,
    Preemption,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
    WaitReason,
)
from tests.support import events

BLOCK_SIZE = 16
START = 1_700_000_000.0
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
        self.lock = threading.RLock()
        self.connection = Connection("ipc:///run/demo", ConnectionState.LIVE)
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


@dataclass
class Actor:
    """A request of the script: one or more sequences that do the same."""

    name: str
    seq_ids: list[int]
    metrics: RequestMetrics
    num_prompt: int
    pieces: list[str]
    cached: int = 0
    computed: int = 0
    num_out: int = 0
    tables: dict[int, list[int]] = field(default_factory=dict)


class Script:
    """Writes an engine's events, step by step, keeping its books as an engine would."""

    def __init__(self, source: ScriptedSource, *, tells_cached: bool = False, **info: Any) -> None:
        self.source = source
        self.info = engine_info(**info)
        self.time = START
        self.number = 0
        self.actors: dict[str, Actor] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.free = list(range(self.info.num_gpu_blocks))[::-1]
        self.num_preemptions = self.hits = self.queries = 0
        self.known: dict[int, CachedBlocks] | None = {} if tells_cached else None
        """The content of the prefix cache; `None` if it is not published."""
        self._seq_ids = itertools.count(1)
        source.apply(self.info)

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
    ) -> Actor:
        metrics = RequestMetrics(self.time, self.time, None, None, None)
        actor = Actor(name, [next(self._seq_ids) for _ in range(n)], metrics, num_prompt, [])
        actor.pieces = pieces or [word + " " for word in STORY]
        self.actors[name] = actor
        self.waiting.append(name)
        self.source.apply(
            RequestArrived(
                request_id=name,
                arrival_time=self.time,
                seq_ids=actor.seq_ids,
                num_prompt_tokens=num_prompt,
                prompt=prompt,
                sampling_params=SamplingParams(n=n, max_tokens=max_tokens, temperature=0.8),
                priority=priority,
            )
        )
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
    ) -> None:
        """One step: `prefill` chunks, one token each for `decode` (default: all that run)."""
        start, self.time = self.time, self.time + STEP_TIME
        self._forgotten: list[int] = []
        updates: list[SequenceUpdate] = []
        preemptions = [self._preempt(*pair, updates) for pair in (preempt or {}).items()]
        for name, owner in (share or {}).items():
            self._share(self.actors[name], self.actors[owner])
        decoding = [name for name in self.running if name not in (prefill or {})]
        decoding = decoding if decode is None else decode
        groups: list[SequenceGroupMetadataLike] = []
        metrics: dict[str, RequestMetrics] = {}
        for name, chunk in [*(prefill or {}).items(), *((name, 1) for name in decoding)]:
            actor = self.actors[name]
            is_prompt = name in (prefill or {})
            stage = SequenceStage.PREFILL if is_prompt else SequenceStage.DECODE
            deltas = {
                seq_id: SequenceDataDelta([], 0.0, actor.computed, stage)
                for seq_id in actor.seq_ids
            }
            groups.append(
                SequenceGroupMetadataDelta(deltas, name, {}, is_prompt, token_chunk_size=chunk)
            )
            updates += self._advance(actor, chunk, start, is_prompt, (stop or {}).get(name))
            metrics[name] = actor.metrics
        newly_cached = self._newly_cached()
        stats = self.stats(sum((prefill or {}).values()), len(decoding))
        self.source.apply(
            Step(
                step=self.number,
                start_time=start,
                time=self.time,
                execute=ExecuteModelRequest(groups),
                sequences=updates,
                stats=stats,
                metrics=metrics,
                preemptions=preemptions,
                wait_reasons=waits or [],
                newly_cached_blocks=newly_cached,
                uncached_blocks=self._forgotten,
            )
        )
        self.number += 1
        for name, status in (stop or {}).items():
            self.finish(name, status)

    def finish(self, name: str, status: SequenceStatus) -> None:
        actor = self.actors[name]
        actor.metrics.finished_time = self.time
        self._release(actor)
        for names in (self.running, self.waiting):
            if name in names:
                names.remove(name)
        self.source.apply(
            RequestFinished(request_id=name, time=self.time, status=status, metrics=actor.metrics)
        )

    def _advance(
        self, actor: Actor, chunk: int, start: float, is_prompt: bool, end: SequenceStatus | None
    ) -> list[SequenceUpdate]:
        if actor.name in self.waiting:
            self.waiting.remove(actor.name)
            self.running.append(actor.name)
        if actor.metrics.first_scheduled_time is None:
            actor.metrics.first_scheduled_time = start
            actor.metrics.time_in_queue = start - actor.metrics.arrival_time
            self.queries += actor.num_prompt
        known = actor.num_prompt + actor.num_out
        actor.computed = min(actor.computed + chunk, known)
        samples = not is_prompt or actor.computed == known
        if samples:
            actor.num_out += 1
            actor.metrics.last_token_time = self.time
            actor.metrics.first_token_time = actor.metrics.first_token_time or self.time
        piece = actor.pieces[(actor.num_out - 1) % len(actor.pieces)] if samples else ""
        updates = []
        for seq_id in actor.seq_ids:
            table = actor.tables.setdefault(seq_id, [])
            needed = -(-actor.computed // BLOCK_SIZE) - len(table)
            new = [self._take() for _ in range(needed)]
            table += new
            updates.append(
                SequenceUpdate(
                    seq_id=seq_id,
                    status=SequenceStatus.RUNNING if end is None else end,
                    num_computed_tokens=actor.computed,
                    num_cached_tokens=actor.cached,
                    new_token_ids=[actor.num_out] if samples else [],
                    new_logprobs=[-0.5] if samples else [],
                    text_delta=piece,
                    new_blocks=new,
                    block_table=self._table(actor, table, len(new), end),
                )
            )
        return updates

    def _table(
        self, actor: Actor, table: list[int], num_new: int, end: SequenceStatus | None
    ) -> list[int] | None:
        """The whole table where appending blocks would not tell it."""
        if end is not None:
            return []
        return list(table) if actor.cached and len(table) == num_new + 2 else None

    def _share(self, actor: Actor, owner: Actor) -> None:
        """Let `actor` begin with the first two blocks of `owner`, found in the prefix cache."""
        actor.cached = actor.computed = 2 * BLOCK_SIZE
        self.hits += actor.cached
        for seq_id in actor.seq_ids:
            actor.tables[seq_id] = owner.tables[owner.seq_ids[0]][:2]

    def _preempt(self, name: str, by: str, updates: list[SequenceUpdate]) -> Preemption:
        actor = self.actors[name]
        lost, actor.computed, actor.cached = actor.computed, 0, 0
        self.num_preemptions += 1
        self.running.remove(name)
        self.waiting.insert(0, name)
        self._release(actor)
        updates += [
            SequenceUpdate(
                seq_id=seq_id,
                status=SequenceStatus.WAITING,
                num_computed_tokens=0,
                block_table=[],
            )
            for seq_id in actor.seq_ids
        ]
        return Preemption(
            request_id=name, mode="recompute", num_lost_tokens=lost, for_request_id=by
        )

    def _release(self, actor: Actor) -> None:
        for table in actor.tables.values():
            blocks = [block for block in table if block in (self.known or ())]
            self.free[:0] = blocks  # taken last
            self.free += [block for block in table if block not in blocks]
        actor.tables.clear()

    def _take(self) -> int:
        block = self.free.pop()
        if self.known and self.known.pop(block, None):
            self._forgotten.append(block)
        return block

    def _newly_cached(self) -> list[CachedBlocks] | None:
        """Let the prefix cache know the full blocks of whoever runs."""
        if self.known is None:
            return None
        newly: list[CachedBlocks] = []
        for actor in map(self.actors.__getitem__, self.running):
            for seq_id, table in actor.tables.items():
                for position, block in enumerate(table[: actor.computed // BLOCK_SIZE]):
                    if block not in self.known:
                        self.known[block] = CachedBlocks(
                            request_id=actor.name, seq_id=seq_id, position=position, blocks=[block]
                        )
                        newly.append(self.known[block])
        return newly

    def stats(self, num_prefill: int, num_decode: int) -> StepStats:
        used = {block for actor in self.actors.values() for table in actor.tables.values()
                for block in table}  # fmt: skip
        total = self.info.num_gpu_blocks
        cached = (
            min(self.number // 4, total - len(used))
            if self.known is None
            else len(self.known.keys() - used)
        )
        return events.stats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_used_blocks=len(used),
            num_free_blocks=total - len(used) - cached,
            num_cached_blocks=cached,
            num_prefill_tokens=num_prefill,
            num_decode_tokens=num_decode,
            prefix_cache_queries=self.queries,
            prefix_cache_hits=self.hits,
            num_preemptions=self.num_preemptions,
            scheduler_time=0.0006,
            model_forward_time=0.038,
            model_execute_time=0.044,
        )


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
        WaitReason(request_id="req-7", cause="no_blocks", num_missing=3),
        WaitReason(request_id="req-8", cause="token_budget", num_missing=88),
        WaitReason(request_id="req-9", cause="seq_limit"),
    ]
    for _ in range(6):
        script.step(
            prefill={"req-6": 20}, decode=["req-1", "req-2", "req-3", "req-4", "pair"], waits=waits
        )
    return script
