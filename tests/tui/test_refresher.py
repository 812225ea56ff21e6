"""When the app looks for news: while some come, when woken, and on a slow beat."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from seqtop.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.header import Header
from seqtop.tui.feed import Feed
from seqtop.tui.refresher import BEAT_SECONDS, FRAMES_PER_SECOND, REST_SECONDS, Refresher
from seqtop.tui.rendering.line_view import LineView
from seqtop.wire.messages import Heartbeat
from tests.support.piloting import until
from tests.support.scripted import Script, ScriptedSource

FRAME = 1 / FRAMES_PER_SECOND


class Handle(NamedTuple):
    cancel: Callable[[], None]


class Loop:
    """An event loop in which time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.num_wakings = 0

    def call_later(self, delay: float, call: Callable[[], object]) -> Handle:
        timer = (self.now + delay, call)
        self.timers.append(timer)
        return Handle(lambda: self.timers.remove(timer))

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        self.num_wakings += 1
        self.timers.append((self.now, call))

    def run(self, seconds: float) -> int:
        """Let time pass; how many timers came due."""
        end, num_due = self.now + seconds, 0
        while self.timers:
            timer = min(self.timers, key=itemgetter(0))
            if timer[0] > end + 1e-9:
                break
            self.timers.remove(timer)
            self.now = timer[0]
            num_due += 1
            timer[1]()
        self.now = end
        return num_due


class Viewer:
    """A feed and what is drawn of it."""

    def __init__(self) -> None:
        self.script = Script(ScriptedSource())
        self.feed = Feed(self.script.source)
        self.drawn: list[float] = []
        self.num_rests = 0
        self.loop = Loop()
        self.pulse = Refresher(lambda: self.feed, self.draw, self.rest)
        self.pulse._loop = self.loop  # type: ignore[assignment]
        self.pulse._look()

    def draw(self) -> None:
        self.drawn.append(self.loop.now)
        self.feed.poll()

    def rest(self) -> None:
        self.num_rests += 1


def test_nobody_is_woken_while_nothing_comes_but_by_the_beat() -> None:
    viewer = Viewer()
    viewer.loop.run(1.0)
    drawn = len(viewer.drawn)
    assert viewer.loop.run(60.0) == 60 / REST_SECONDS
    assert len(viewer.drawn) == drawn
    assert viewer.loop.num_wakings == 0
    assert viewer.num_rests >= 60 / REST_SECONDS  # in which garbage is collected


def test_an_engine_that_has_gone_silent_is_looked_at_on_a_beat() -> None:
    viewer = Viewer()
    viewer.loop.run(1.0)
    viewer.script.source.connect(ConnectionState.LOST, "No word from the engine.")
    viewer.loop.run(1.0)
    assert viewer.loop.run(60.0) == 60 / BEAT_SECONDS


def test_a_heartbeat_wakes_once_and_nothing_else_does() -> None:
    viewer = Viewer()
    viewer.loop.run(1.0)
    drawn = len(viewer.drawn)
    for second in range(1, 11):
        viewer.script.source.apply(Heartbeat(time=viewer.script.time + second, step=0))
        # It looks at it, and a frame later falls asleep again.
        assert viewer.loop.run(1.0) == 2
    assert viewer.loop.num_wakings == len(viewer.drawn) - drawn == 10


def test_what_comes_after_a_rest_is_drawn_at_once() -> None:
    viewer = Viewer()
    viewer.loop.run(1.03)
    viewer.script.arrive("new")
    viewer.loop.run(0)
    assert viewer.drawn[-1] == 1.03
    assert viewer.loop.num_wakings == 1
    assert len(viewer.loop.timers) == 1  # the beat has made way for the next frame


def test_of_much_that_comes_no_more_is_drawn_than_frames_and_nobody_is_woken() -> None:
    viewer = Viewer()
    viewer.loop.run(1.0)
    before = len(viewer.drawn)
    for _ in range(1_000):
        viewer.script.source.changed()
        viewer.loop.run(0.001)
    assert abs(len(viewer.drawn) - before - FRAMES_PER_SECOND) <= 1
    assert viewer.loop.num_wakings == 1
    gaps = [later - earlier for earlier, later in zip(viewer.drawn, viewer.drawn[1:], strict=False)]
    assert min(gaps) >= FRAME - 1e-9


def test_what_comes_just_as_one_falls_asleep_is_not_slept_over() -> None:
    viewer = Viewer()
    viewer.loop.run(1.0)
    ask = viewer.feed.call_at_news

    def late(call: Callable[[], object]) -> None:
        viewer.feed.call_at_news = ask  # type: ignore[method-assign]
        viewer.script.arrive("in between")
        ask(call)

    viewer.feed.call_at_news = late  # type: ignore[method-assign]
    drawn = len(viewer.drawn)
    viewer.loop.run(REST_SECONDS)
    assert len(viewer.drawn) == drawn + 1


def test_after_the_end_nothing_is_looked_at() -> None:
    viewer = Viewer()
    viewer.loop.run(1.0)
    viewer.pulse.stop()
    viewer.script.arrive("late")
    assert not viewer.loop.timers
    assert viewer.loop.num_wakings == 0


def test_another_thread_has_the_app_draw(lines: Counter[LineView]) -> None:
    async def run() -> None:
        script = Script(ScriptedSource())
        app = SeqtopApp(script.source)
        async with app.run_test(size=(120, 24)) as pilot:
            await until(pilot, lambda: app._pulse._asleep)
            before = lines[app.screen.query_one(Header)]
            thread = threading.Thread(target=script.arrive, args=("from-afar",))
            thread.start()
            thread.join()
            await until(pilot, lambda: lines[app.screen.query_one(Header)] > before)
            await until(pilot, lambda: app._pulse._asleep)

    asyncio.run(run())
