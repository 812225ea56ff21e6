"""Draws the pictures in this folder from a seeded run of the bundled engine (`make screenshots`).

It also records that run for `seqtop demo` where torch is missing; with names of functions, such as
`record_demo`, it does only these.

The demo's workload runs in this process until a step at which a request runs again after a
preemption. The app then shows that state: the table at three sizes, then the other screens, the
help, the light theme; then the tour of `seqtop demo --tour` as one moving picture, a fleet of
engines, and the checks of a run with a defect. The engine's times are simulated, so the pictures do
not depend on the speed of this machine.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from textual.pilot import Pilot

from engine_stub.config import EngineConfig
from engine_stub.core.scheduler import SchedulerOutputs
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.entrypoints.workload import DEMO_LIMITS, arrivals
from engine_stub.processing.output_processor import ProcessedOutputs
from engine_stub.step_record import StepRecord
from engine_stub.worker.model_runner import ModelOutput
from seqtop.demo import RECORDED_RUN
from seqtop.history.file_writer import FileWriter
from seqtop.history.memory_store import MemoryStore
from seqtop.process.observable import Observable
from seqtop.sequence import ExecuteModelRequest, SamplingParams
from seqtop.state import EngineState
from seqtop.state.finished import FinishedMemory
from seqtop.state.listener import Listener, StateChange
from seqtop.transport.connection import Connection, ConnectionState, ControlError
from seqtop.tui.app import SeqtopApp
from seqtop.tui.tour import STOPS
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, Step

SIZES = ((80, 24), (120, 40), (200, 60))
SCREEN_SIZE, HELP_SIZE, FLEET_SIZE = (100, 30), (160, 44), (120, 36)
BLOCKS_SIZE = (118, 50)
"""A size in which the cells of the block map have room for the text of their blocks."""
SCREENS = (
    ("blocks", ("2",)),
    ("timeline", ("3",)),
    ("overview", ("6",)),
    ("preemption", ("4", "p")),
    ("help", ("L", "1", "question_mark")),
)
"""The pictures of the other screens, with the keys that open each from the one before."""
OTHER_SIZES = {"help": HELP_SIZE, "blocks": BLOCKS_SIZE}
FLEET_TICKS = (420, 180, 260)
"""The ticks that the other engines of the fleet have run."""
LEAKING_STEPS = range(88, 91)
"""The steps after the third preemption, in the run with a defect."""
TOUR_SIZE = (110, 34)
"""A size in which a pane has room beside the text of a stop, and which is legible in a page."""
LIVE_TICKS = (150, 158)
"""The ticks of the frames before the tour goes into the past, in which the engine runs."""
SECONDS_PER_LIVE_FRAME = 3.0
SECONDS_PER_STOP = 6.0
RECORDED_TICKS = 401
"""The ticks of the recorded run, in which all that the tour shows happens."""
WHAT_IF = "num_gpu_blocks=+50%"
SELECTED = "typed-4"
"""The request that the pictures show when it runs again after a preemption."""

_SECONDS_PER_IDLE_TICK = 1 / 15
_SECONDS_PER_PART = (0.0003, 0.0009)
_SECONDS_BETWEEN_STEPS = (0.001, 0.004)
_SECONDS_PER_FORWARD = (0.034, 0.041)
_SECONDS_PER_TOKEN = 0.0005
_START = 1_790_000_000.0
_MAX_TICKS = 1_000


class SimulatedClock:
    """A clock that advances by times that are the same in every run."""

    def __init__(self) -> None:
        self.now = _START
        self._random = random.Random(7)

    def __call__(self) -> float:
        """Returns the time in epoch seconds."""
        return self.now

    def end_part(self) -> float:
        """Advances by the time of a part of a step, and returns the time."""
        self.advance(*_SECONDS_PER_PART)
        return self.now

    def advance(self, least: float, most: float) -> float:
        """Advances by a random time between two numbers of seconds, and returns it."""
        seconds = self._random.uniform(least, most)
        self.now += seconds
        return seconds


class RunSource(Observable):
    """A `Source` and publisher in one, which encodes events but has no socket."""

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.state = EngineState()
        self.lock = threading.RLock()
        self.connection = Connection(endpoint, ConnectionState.LIVE)
        self.leaks = False
        """True if the published figures of some steps have a block that nobody holds."""
        self.history = MemoryStore()
        self.finished_memory = FinishedMemory()
        self.listeners: list[Listener] = [self.history.record]

    def publish(self, event: Event) -> None:
        """Applies an event after encoding and decoding it."""
        if self.leaks and isinstance(event, Step) and event.step in LEAKING_STEPS:
            event.stats.num_used_blocks += 1
            event.stats.num_free_blocks -= 1
        payload = codec.encode(event)
        event = parsing.event(payload)
        touched = self.state.apply(event)
        change = StateChange(self.state, touched, event, payload, self.connection.num_messages)
        self.connection.num_messages += 1
        for listener in self.listeners:
            listener(change)
        self.changed()

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with the current state and with each later change."""
        listener(
            StateChange(
                self.state, None, incarnation=self.state.info.incarnation if self.state.info else ""
            )
        )
        self.listeners.append(listener)

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Refuses the request."""
        raise ControlError(f"this run accepts no requests: {prompt!r}, {params}")

    def abort(self, request_id: str) -> None:
        """Refuses the request."""
        raise ControlError(f"this run accepts no commands: abort {request_id}")


class Run:
    """The demo's workload on the bundled engine, tick by tick."""

    def __init__(self, engine_id: str = "demo", port: int = 5557) -> None:
        self.clock = SimulatedClock()
        config = EngineConfig(device="cpu", **DEMO_LIMITS)
        self.engine = LLMEngine(config, clock=self.clock, timer=self.clock.end_part)
        self.source = RunSource(f"tcp://127.0.0.1:{port}")
        self.steps = StepPublisher(self.source)
        self.source.publish(engine_info(self.engine, engine_id=engine_id, control=True))
        self.workload = arrivals()
        self.next_arrival = next(self.workload)

    def tick(self, number: int) -> None:
        """Adds the requests that are due and runs one step of the engine."""
        while self.next_arrival.tick <= number:
            due, self.next_arrival = self.next_arrival, next(self.workload)
            for group in self.engine.add_request(due.request_id, due.prompt, due.params):
                self.steps.arrived(group)
        if self.engine.has_unfinished_requests():
            self.clock.advance(*_SECONDS_BETWEEN_STEPS)
            self.steps.stepped(self._step())
        else:
            self.clock.now += _SECONDS_PER_IDLE_TICK

    def _step(self) -> StepRecord:
        """Runs a step whose parts take simulated times."""
        worker, clock = self.engine.worker, self.clock
        execute_model, process = worker.execute_model, self.engine.output_processor.process

        def execute(request: ExecuteModelRequest) -> ModelOutput:
            output = execute_model(request)
            num_tokens = sum(each.token_chunk_size for each in request.seq_group_metadata_list)
            least, most = (each + num_tokens * _SECONDS_PER_TOKEN for each in _SECONDS_PER_FORWARD)
            return replace(output, model_forward_time=clock.advance(least, most))

        def process_outputs(scheduled: SchedulerOutputs, output: ModelOutput) -> ProcessedOutputs:
            clock.end_part()
            return process(scheduled, output)

        with (
            patch.object(worker, "execute_model", execute),
            patch.object(self.engine.output_processor, "process", process_outputs),
        ):
            return self.engine.step()

    def is_ready_to_draw(self) -> bool:
        """Returns whether the request runs again after a preemption while others wait."""
        request = self.source.state.requests.get(SELECTED)
        if request is None or not request.num_preemptions or request.finish_reason:
            return False
        sequence = self.source.state.sequences[request.seq_ids[0]]
        has_resumed = request.spans[-1].kind == "decode" and request.spans[-1].num_steps >= 25
        waiting = self.source.state.num_by_status[0]
        return bool(has_resumed and waiting and sequence.text)


async def draw() -> None:
    """Runs the workload once and writes every picture."""
    run = Run()
    app = SeqtopApp(run.source, clock=lambda: run.clock.now)
    async with app.run_test(size=SIZES[-1]) as pilot:
        for number in itertools.count():
            run.tick(number)
            app.ui.update()
            if run.is_ready_to_draw():
                break
            if number == _MAX_TICKS:
                raise SystemExit(f"{SELECTED} never resumed after a preemption: choose another")
        app.ui.cursor.seq_id = run.source.state.requests[SELECTED].seq_ids[0]
        app.ui.cursor.set_by_user = True
        for width, height in SIZES:
            await picture(pilot, run, f"sequences-{width}x{height}", (width, height))
        for name, keys in SCREENS:
            await pilot.press(*keys)
            await picture(pilot, run, name, OTHER_SIZES.get(name, SCREEN_SIZE))
        await pilot.press("escape", "T")
        await picture(pilot, run, "light", SCREEN_SIZE)


async def draw_tour() -> None:
    """Draws each stop of the tour, and the prediction that the last one proposes, as one file."""
    run, last = Run(), 0
    app = SeqtopApp(run.source, clock=lambda: run.clock.now, has_tour=True)
    frames: list[tuple[str, float]] = []

    async def add(title: str, seconds: float) -> None:
        for _ in range(2):  # the first time for a screen that has just been opened
            await settle(pilot, run)
        frames.append((compact(app.export_screenshot(title=title)), seconds))

    async with app.run_test(size=TOUR_SIZE) as pilot:
        for tick in LIVE_TICKS:
            for number in range(last, tick):
                run.tick(number)
                app.ui.update()
            last = tick
            await add("seqtop demo --tour", SECONDS_PER_LIVE_FRAME)
        for _ in STOPS[1:]:
            await pilot.press("N")
            while app.tour is None or app.tour.is_waiting:
                await pilot.pause(0.1)
            await add("seqtop demo --tour", SECONDS_PER_STOP)
        await pilot.press("I", *WHAT_IF, "enter")
        dialog = app.screen
        while "PREDICTION" not in str(dialog.query_one("#replay-answer").render()):
            await pilot.pause(0.1)
        await add(f"What if: {WHAT_IF}", SECONDS_PER_STOP)
    path = Path(__file__).with_name("tour.svg")
    path.write_text(animated(frames), encoding="utf-8")
    print(f"screenshots/{path.name}: {path.stat().st_size // 1000} kB")


async def record_demo() -> None:
    """Records the demo's workload for installations without torch."""
    run = Run()
    with FileWriter(RECORDED_RUN, overwrite=True) as writer:
        run.source.add_listener(writer.record)
        for number in range(RECORDED_TICKS):
            run.tick(number)
    RECORDED_RUN.chmod(0o644)  # recordings are private, this one is shipped
    print(f"{RECORDED_RUN.name}: {RECORDED_RUN.stat().st_size // 1000} kB")


async def draw_fleet() -> None:
    """Draws the list of several engines."""
    runs = [Run(f"rank-{rank}", 5557 + 2 * rank) for rank in range(len(FLEET_TICKS))]
    app = SeqtopApp(*(run.source for run in runs), clock=lambda: runs[0].clock.now)
    for run, ui, num_ticks in zip(runs, app.engines.all, FLEET_TICKS, strict=True):
        for number in range(num_ticks):
            run.tick(number)
            ui.update()
    async with app.run_test(size=SCREEN_SIZE) as pilot:
        await picture(pilot, runs[0], "fleet", FLEET_SIZE)


async def draw_checks() -> None:
    """Draws the checks of a run in which the engine forgets to free a block."""
    run = Run()
    run.source.leaks = True
    app = SeqtopApp(run.source, clock=lambda: run.clock.now)
    for number in range(160):
        run.tick(number)
        app.ui.update()
    async with app.run_test(size=SCREEN_SIZE) as pilot:
        await pilot.press("5")
        while app.ui.checks.checker is None or app.ui.checks.checker.replay.is_behind:
            await pilot.pause(0.1)
        await picture(pilot, run, "checks", SCREEN_SIZE)


def compact(svg: str) -> str:
    """Returns a picture without the clip paths of its lines, which are half of it."""
    svg = re.sub(r'<clipPath id="[^"]*-line-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(r' clip-path="url\(#[^"]*-line-\d+\)"', "", svg)
    svg = svg.replace(' shape-rendering="crispEdges"', "")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # pages load no fonts here
    return re.sub(r">\s+<", "><", svg)


def animated(frames: Sequence[tuple[str, float]]) -> str:
    """Returns an SVG that shows each of `frames`, which have one size, in turn.

    Args:
        frames: Pictures, and for how many seconds each is shown.
    """
    view_box = re.search(r'viewBox="[^"]*"', frames[0][0])
    assert view_box is not None
    total = sum(seconds for _, seconds in frames)
    rules = ["rect { shape-rendering: crispEdges }", ".frame { visibility: hidden }"]
    start = 0.0
    for number, (_, seconds) in enumerate(frames):
        rules += [
            f"@keyframes shown-{number} {{ 0% {{ visibility: visible }}",
            f"{100 * seconds / total:.3f}% {{ visibility: hidden }} }}",
            f".frame-{number} {{ animation: shown-{number} {total}s {start}s step-end infinite }}",
        ]
        start += seconds
    groups = [
        f'<g class="frame frame-{number}">{svg}</g>' for number, (svg, _) in enumerate(frames)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {view_box[0]}>',
            f"<style>{' '.join(rules)}</style>",
            *groups,
            "</svg>",
            "",
        ]
    )


async def picture(pilot: Pilot[int], run: Run, name: str, size: tuple[int, int]) -> None:
    """Writes a picture of the app at a size."""
    await pilot.resize_terminal(*size)
    await settle(pilot, run)
    folder = Path(__file__).parent
    pilot.app.save_screenshot(f"{name}.svg", str(folder))
    print(f"screenshots/{name}.svg")


async def settle(pilot: Pilot[int], run: Run) -> None:
    """Waits until the app has drawn the newest state."""
    run.source.version += 1
    await pilot.pause(0.3)


if __name__ == "__main__":
    for drawing in (draw, draw_tour, draw_fleet, draw_checks, record_demo):
        if len(sys.argv) == 1 or drawing.__name__ in sys.argv:
            asyncio.run(drawing())
