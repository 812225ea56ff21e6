"""Draw the pictures in this folder from a seeded run of the bundled engine (`make screenshots`).

The demo's workload runs in this process until a step at which much is going on; then the app shows
that state: the table at three sizes, then the other screens, the last of them at a moment before.
The engine's clock advances by a fixed time a step, so that the pictures do not tell how fast this
machine is.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

from textual.pilot import Pilot

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from engine_stub.entrypoints.workload import DEMO_LIMITS, arrivals
from seqtop.connection import Connection, ConnectionState, ControlError
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event

SIZES = ((80, 24), (120, 40), (200, 60))
SCREEN_SIZE = (100, 28)
SCREENS = (("blocks", ("2",)), ("timeline", ("3",)), ("preemption", ("4", "p")))
"""The pictures of the other screens, each with the keys that lead to it from the one before."""
SELECTED = "typed-4"
"""The request that the pictures look at, from the moment it is running again after a preemption."""

_SECONDS_PER_TICK = 1 / 15
_SECONDS_PER_READING = 0.05
_START = 1_790_000_000.0
_MAX_TICKS = 1_000


class SeededClock:
    """Every reading is a fixed time after the one before it."""

    def __init__(self) -> None:
        self.now = _START

    def __call__(self) -> float:
        self.now += _SECONDS_PER_READING
        return self.now


class RunSource:
    """`Source` and publisher in one: events pass through the wire's encoding, but no socket."""

    def __init__(self) -> None:
        self.state = EngineState()
        self.lock = threading.RLock()
        self.link = Connection("tcp://127.0.0.1:5557", ConnectionState.LIVE)
        self.version = 0
        self.history = MemoryStore()

    def publish(self, event: Event) -> None:
        payload = codec.encode(event)
        event = parsing.event(payload)
        self.state.apply(event)
        self.history.append(self.link.num_messages, payload, event, self.state)
        self.link.num_messages += 1
        self.version += 1

    def drain(self) -> set[int] | None:
        return None

    def submit(self, prompt: str, params: SamplingParams) -> str:
        raise ControlError(f"this run is only a picture; it takes no {prompt!r}, {params}")

    def abort(self, request_id: str) -> None:
        raise ControlError(f"this run is only a picture; {request_id} stays")


class Run:
    """The demo's workload on the bundled engine, one tick at a time."""

    def __init__(self) -> None:
        self.clock = SeededClock()
        config = EngineConfig(device="cpu", **DEMO_LIMITS)
        self.engine = LLMEngine(config, clock=self.clock)
        self.source = RunSource()
        self.steps = StepPublisher(self.source)
        self.source.publish(engine_info(self.engine, engine_id="demo", control=True))
        self.workload = arrivals()
        self.next_arrival = next(self.workload)

    def tick(self, number: int) -> None:
        start = self.clock.now
        while self.next_arrival.tick <= number:
            due, self.next_arrival = self.next_arrival, next(self.workload)
            for group in self.engine.add_request(due.request_id, due.prompt, due.params):
                self.steps.arrived(group)
        if self.engine.has_unfinished_requests():
            self.steps.stepped(self.engine.step())
        self.clock.now = max(self.clock.now, start + _SECONDS_PER_TICK)

    def worth_a_picture(self) -> bool:
        """Whether the selected request runs again after a preemption, and others still wait."""
        request = self.source.state.requests.get(SELECTED)
        if request is None or not request.num_preemptions or request.finish_reason:
            return False
        sequence = self.source.state.sequences[request.seq_ids[0]]
        ran_on = request.spans[-1].kind == "decode" and request.spans[-1].num_steps >= 25
        waiting = self.source.state.num_by_status[0]
        return bool(ran_on and waiting and sequence.text)


async def draw() -> None:
    """Run the workload once and write every picture."""
    run = Run()
    app = SeqtopApp(run.source, clock=run.clock)
    async with app.run_test(size=SIZES[-1]) as pilot:
        for number in itertools.count():
            run.tick(number)
            app.feed.poll()
            if run.worth_a_picture():
                break
            if number == _MAX_TICKS:
                raise SystemExit(f"{SELECTED} was never worth a picture; choose another request")
        app.feed.selected = run.source.state.requests[SELECTED].seq_ids[0]
        app.feed.chosen = True
        for width, height in SIZES:
            await picture(pilot, run, f"sequences-{width}x{height}", (width, height))
        for name, keys in SCREENS:
            await pilot.press(*keys)
            await picture(pilot, run, name, SCREEN_SIZE)


async def picture(pilot: Pilot[int], run: Run, name: str, size: tuple[int, int]) -> None:
    """Write what the app shows at a size."""
    await pilot.resize_terminal(*size)
    run.source.version += 1
    await pilot.pause(0.3)
    folder = Path(__file__).parent
    pilot.app.save_screenshot(f"{name}.svg", str(folder))
    print(f"screenshots/{name}.svg")


if __name__ == "__main__":
    asyncio.run(draw())
