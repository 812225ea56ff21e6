"""One seeded story of things going wrong between an engine and a viewer, played for real."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field

import msgspec

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo, Step
from tests.support.fault_proxy import HARMLESS, FaultProxy, Faults
from tests.support.random_engine import RandomEngine
from tests.support.waiting import SECONDS, wait_until

HEARTBEAT = 0.2
"""Seconds. A viewer learns from the next message that the last one is missing."""
STEPS_BEFORE, STEPS_DURING, STEPS_AFTER = 10, 60, 10
PACE = 0.003


@dataclass
class Plan:
    """The faults of a run, in the order in which they happen."""

    faults: Faults
    outage: str = ""
    """`cut`, `freeze`, `restart`, `crash`, or empty."""

    def __str__(self) -> str:
        rates = {kind: getattr(self.faults, kind) for kind in Faults.KINDS}
        words = [f"{kind} {rate:.2g}" for kind, rate in rates.items() if rate]
        return ", ".join([*words, self.outage] if self.outage else words)


def plan(seed: int) -> Plan:
    """One to three kinds of fault, the first often, and an outage in every second story."""
    choose = random.Random(seed)
    kinds = choose.sample(Faults.KINDS, choose.randint(1, 3))
    rates = {
        kind: 0.05 * choose.random() if kind == "delay" else choose.uniform(least, 0.5)
        for kind, least in zip(kinds, (0.1, 0.01, 0.01), strict=False)
    }
    outage = choose.choice(("cut", "freeze", "restart", "crash")) if seed % 2 else ""
    return Plan(Faults(**rates), outage)


@dataclass
class Outcome:
    seconds_to_equal: float
    """From the end of the faults until the viewer knew what the engine knew."""
    faults: dict[str, int]
    """The number of faults of each kind."""
    num_resyncs: int


@dataclass
class _Numbers:
    """Listens to a session: which messages its record has one by one."""

    taken: int = 0
    restored: list[tuple[str, int]] = field(default_factory=list)

    def note(self, change: StateChange) -> None:
        if change.event is None:
            self.restored.append((change.incarnation, change.sequence_number))
        else:
            self.taken += 1


class _Engine:
    """Publishes a script's events, and can be started anew."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self._endpoint = endpoint
        self._seed = seed
        self._starts = 0
        self.start()

    def start(self) -> None:
        self._starts += 1
        steps = STEPS_BEFORE + STEPS_DURING + STEPS_AFTER
        script = RandomEngine(
            self._seed + self._starts, steps, incarnation=f"start-{self._starts}", load=6
        )
        self._events = iter(script)
        info = next(self._events)
        assert isinstance(info, EngineInfo)
        info = msgspec.structs.replace(info, heartbeat_interval=HEARTBEAT)
        self.replica = EngineState()
        self._publisher = MessagePublisher(self._endpoint, info, self.replica)

    def play(self, num_steps: int) -> None:
        """Publish so many steps, and what comes between them, at an engine's pace."""
        for event in self._events:
            self._publisher.publish(event)
            if isinstance(event, Step):
                time.sleep(PACE)
                num_steps -= 1
                if num_steps <= 0:
                    return

    def end(self) -> None:
        self._publisher.close()


def _wreak(story: Plan, proxy: FaultProxy, engine: _Engine) -> None:
    """Go on publishing while everything goes wrong that is to."""
    engine.play(STEPS_DURING // 3)
    if story.outage == "freeze":
        proxy.freeze()
    elif story.outage in ("cut", "crash"):
        proxy.cut()
    if story.outage in ("restart", "crash"):
        # Behind a cut the end is not received, as when a process is killed.
        engine.end()
        engine.start()
    engine.play(STEPS_DURING // 3)
    proxy.thaw()
    proxy.mend()
    engine.play(STEPS_DURING // 3)


def same(session: Session, replica: EngineState) -> bool:
    """True if the viewer's state equals the engine's, except for the viewer's limit on history."""
    with session.lock:
        return msgspec.structs.replace(session.state, max_finished=replica.max_finished) == replica


def _assert_every_loss_is_counted(session: Session, numbers: _Numbers) -> None:
    """Each message is in the record, or in the count of one of its holes.

    It is unknown how much of an engine's earlier start is missing at its end, so with a restart
    only the restart itself is checked.
    """
    gaps = session.history.gaps
    starts = [start for start, _ in numbers.restored]
    assert [gap.restarted for gap in gaps] == [
        new != old for old, new in itertools.pairwise(starts)
    ]
    if len(set(starts)) == 1:
        missed = sum(gap.num_missed for gap in gaps)
        _, joined = numbers.restored[0]
        assert numbers.taken + missed == session.sequence_number - joined


def run(seed: int, directory: str) -> Outcome:
    """Play the story of `seed` with sockets in `directory`; every promise is asserted."""
    story = plan(seed)
    engine = _Engine(f"ipc://{directory}/e", seed)
    viewer_endpoint = f"ipc://{directory}/v"
    with (
        FaultProxy(f"ipc://{directory}/e", viewer_endpoint, seed) as proxy,
        Session(viewer_endpoint) as session,
    ):
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        numbers = _Numbers()
        session.add_listener(numbers.note)
        engine.play(STEPS_BEFORE)
        wait_until(lambda: same(session, engine.replica))
        with session.lock:
            before = session.history.last
            remembered = codec.encode(session.history.at(before))

        proxy.faults = story.faults
        _wreak(story, proxy, engine)
        proxy.faults = HARMLESS
        healthy = time.monotonic()
        engine.play(STEPS_AFTER)
        wait_until(lambda: same(session, engine.replica))
        seconds = time.monotonic() - healthy

        with session.lock:
            assert codec.encode(session.history.at(before)) == remembered
            _assert_every_loss_is_counted(session, numbers)
        engine.end()
        return Outcome(seconds, dict(proxy.counts), session.connection.num_resyncs)
