"""The app draws after a change, at most at the frame rate, and not while nothing changes."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from textual.drivers._writer_thread import WriterThread

from seqtop.sequence import SequenceStatus
from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.header import Header
from seqtop.tui.refresher import FRAMES_PER_SECOND, NEWS_PER_SECOND, Refresher
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import Heartbeat
from tests.support.drawing import crowd, drawn
from tests.support.piloting import play, screen, until
from tests.support.scripted import Script, ScriptedSource
from tests.support.waiting import wait_until

FRAME = 1 / NEWS_PER_SECOND


class Handle(NamedTuple):
    cancel: Callable[[], None]


class Loop:
    """An event loop in which time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.num_wakings = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], object]) -> Handle:
        timer = (self.now + delay, call)
        self.timers.append(timer)
        return Handle(lambda: self.timers.remove(timer) if timer in self.timers else None)

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        self.num_wakings += 1
        self.timers.append((self.now, call))

    def call_next(self, call: Callable[[], object]) -> None:
        self.timers.append((self.now, call))

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        end = self.now + seconds
        while self.timers:
            timer = min(self.timers, key=itemgetter(0))
            if timer[0] > end + 1e-9:
                break
            self.timers.remove(timer)
            self.now = max(self.now, timer[0])
            timer[1]()
        self.now = max(self.now, end)


class Viewer:
    """The state of a display and the times at which it was drawn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script = Script(ScriptedSource())
        self.ui = UiState(self.script.source)
        self.drawn: list[float] = []
        self.loop = Loop()
        self.frame_takes = 0.0
        self.is_behind = False
        self.refresher = Refresher(self.draw, self.loop.call_next, is_behind=lambda: self.is_behind)
        self.ui.request_frame = self.refresher.wake
        self.ui.show_news = partial(self.refresher.wake, rate=NEWS_PER_SECOND)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self.loop)
        self.refresher.start()
        self.loop.run(1.0)
        self.num_first = self.loop.num_wakings

    def draw(self) -> None:
        self.drawn.append(self.loop.now)
        self.ui.update()
        self.loop.now += self.frame_takes

    @property
    def num_wakings(self) -> int:
        return self.loop.num_wakings - self.num_first


@pytest.fixture
def viewer(monkeypatch: pytest.MonkeyPatch) -> Viewer:
    return Viewer(monkeypatch)


def test_nothing_is_drawn_while_nothing_changes(viewer: Viewer) -> None:
    assert viewer.drawn == [0.0]
    viewer.loop.run(60.0)
    assert viewer.drawn == [0.0]
    assert viewer.num_wakings == 0
    assert not viewer.loop.timers


def test_a_heartbeat_wakes_once(viewer: Viewer) -> None:
    drawn = len(viewer.drawn)
    for second in range(1, 11):
        viewer.script.source.apply(Heartbeat(time=viewer.script.time + second, step=0))
        viewer.loop.run(1.0)
    assert viewer.num_wakings == len(viewer.drawn) - drawn == 10


def test_a_change_after_a_rest_is_drawn_at_once(viewer: Viewer) -> None:
    viewer.loop.run(0.03)
    viewer.script.arrive("new")
    viewer.loop.run(0)
    assert viewer.drawn[-1] == 1.03
    assert viewer.num_wakings == 1


def test_of_much_that_comes_no_more_is_drawn_than_frames(viewer: Viewer) -> None:
    before = len(viewer.drawn)
    for _ in range(1_000):
        viewer.script.source.changed()
        viewer.loop.run(0.001)
    num_frames = len(viewer.drawn) - before
    assert abs(num_frames - NEWS_PER_SECOND) <= 1
    assert viewer.num_wakings <= num_frames + 1
    gaps = [later - earlier for earlier, later in pairwise(viewer.drawn)]
    assert min(gaps) >= FRAME - 1e-9


def test_an_answer_to_a_user_does_not_wait_for_the_next_news(viewer: Viewer) -> None:
    before = len(viewer.drawn)
    viewer.script.source.changed()
    viewer.loop.run(0)
    viewer.script.source.changed()
    viewer.ui.request_frame()
    viewer.loop.run(1.0)
    first, second = viewer.drawn[before:]
    assert second - first == pytest.approx(1 / FRAMES_PER_SECOND)


def test_slow_frames_leave_half_of_the_time_to_keys_and_painting(viewer: Viewer) -> None:
    viewer.frame_takes = FRAME
    before = len(viewer.drawn)
    for _ in range(1_000):
        viewer.script.source.changed()
        viewer.loop.run(0.001)
    drawn = viewer.drawn[before:]
    gaps = [later - earlier for earlier, later in pairwise(drawn)]
    assert len(gaps) > 3
    assert min(gaps) >= 2 * FRAME - 1e-9
    assert max(gaps) < 2 * FRAME + 0.002


def test_a_change_while_a_frame_is_drawn_is_drawn_next(
    viewer: Viewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = viewer.ui.update

    def late() -> None:
        update()
        monkeypatch.undo()
        viewer.script.arrive("in between")

    monkeypatch.setattr(viewer.ui, "update", late)
    drawn = len(viewer.drawn)
    viewer.script.arrive("first")
    viewer.loop.run(2 * FRAME)
    assert len(viewer.drawn) == drawn + 2
    assert len(viewer.ui.view) == 2


def test_a_paused_display_is_not_drawn_for_each_change(viewer: Viewer) -> None:
    viewer.ui.time_travel.pause()
    assert not viewer.ui.time_travel.take_news()
    drawn = len(viewer.drawn)
    viewer.script.arrive("new")
    viewer.loop.run(1.0)
    assert (len(viewer.drawn), viewer.num_wakings) == (drawn, 0)
    assert viewer.ui.time_travel.take_news(), "the next tick draws the distance to it"
    assert not viewer.ui.time_travel.take_news()


def test_lines_below_a_dialog_are_drawn_when_it_closes(lines: Counter[LineView]) -> None:
    script, app = crowd(3)
    script.step()
    with play(app, (120, 40)) as pilot:
        pilot.press("question_mark")
        before = drawn(app, pilot, lines)
        script.arrive("behind")
        assert drawn(app, pilot, lines) == before
        pilot.press("escape")
        until(pilot, lambda: "behind" in screen(app))


def test_after_the_end_nothing_is_drawn(viewer: Viewer) -> None:
    viewer.refresher.stop()
    viewer.script.arrive("late")
    assert not viewer.loop.timers
    assert viewer.num_wakings == 0


def test_another_thread_has_the_app_draw(lines: Counter[LineView]) -> None:
    script = Script(ScriptedSource())
    app = SeqtopApp(script.source)
    with play(app, (120, 24)) as pilot:
        before = lines[app.screen.query_one(Header)]
        thread = threading.Thread(target=script.arrive, args=("from-afar",))
        thread.start()
        thread.join()
        until(pilot, lambda: lines[app.screen.query_one(Header)] > before)


def test_the_age_of_a_lost_engine_is_drawn_although_nothing_comes() -> None:
    clock = [100.0]
    script = Script(ScriptedSource())
    app = SeqtopApp(script.source, clock=lambda: clock[0])
    with play(app, (120, 24)) as pilot:
        script.source.connect(ConnectionState.LOST, "No message from the engine.")
        clock[0] += 7
        until(pilot, lambda: "LOST 7" in screen(app))
        clock[0] += 5
        until(pilot, lambda: "LOST 12" in screen(app))


def test_a_frame_draws_no_titles_and_no_tabs_again(lines: Counter[LineView]) -> None:
    script, app = crowd(200)
    with play(app, (160, 50)) as pilot:
        drawn(app, pilot, lines)
        script.time = int(script.time) + 0.3
        script.step()
        before = drawn(app, pilot, lines)
        for _ in range(3):
            script.step()
        after = drawn(app, pilot, lines)
        assert after["Rows"] > before["Rows"]
        for name in ("Titles", "ScreenTabs", "DetailTabs"):
            assert after[name] == before[name]


@pytest.mark.parametrize("size", [(160, 50), (120, 40), (80, 24)])
def test_nothing_is_laid_out_anew_while_blocks_fill(
    lines: Counter[LineView], size: tuple[int, int]
) -> None:
    script, app = crowd(3)
    script.step()
    with play(app, size) as pilot:
        drawn(app, pilot, lines)
        layouts: list[object] = []
        app.screen.screen_layout_refresh_signal.subscribe(app.screen, layouts.append)
        held = len(script.actors["runs"].seqs[0].table)
        for _ in range(18):
            script.step()
            drawn(app, pilot, lines)
        assert len(script.actors["runs"].seqs[0].table) > held
        assert not layouts


def test_idle_draws_nothing(lines: Counter[LineView]) -> None:
    script, app = crowd(30)
    script.step()
    with play(app, (120, 40)) as pilot:
        before = drawn(app, pilot, lines)
        for _ in range(10):
            after = drawn(app, pilot, lines)
        assert after == before


def test_heartbeats_of_an_idle_engine_draw_nothing(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("done")
    script.step(prefill={"done": 40}, stop={"done": SequenceStatus.FINISHED_STOPPED})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        for beat in range(8):  # until the rates, and the charts of the header, show nothing else
            source.apply(Heartbeat(time=script.time + beat + 1, step=0))
            before = drawn(app, pilot, lines)
        painted: list[bool] = []
        app.post_display_hook = lambda: painted.append(True)
        for beat in range(9, 29):
            source.apply(Heartbeat(time=script.time + beat, step=0))
            after = drawn(app, pilot, lines)
        assert after == before
        assert not painted  # no frame went to the terminal


def test_no_frame_is_drawn_before_the_terminal_has_taken_the_last_one(viewer: Viewer) -> None:
    before = len(viewer.drawn)
    viewer.is_behind = True
    for _ in range(100):
        viewer.script.source.changed()
        viewer.refresher.wake()
        viewer.loop.run(0.01)
    assert len(viewer.drawn) == before
    viewer.is_behind = False
    viewer.loop.run(FRAME)
    assert len(viewer.drawn) == before + 1
    assert not viewer.loop.timers


def test_the_terminal_is_behind_until_it_has_taken_all() -> None:
    source, sink = os.pipe()
    app: Any = SeqtopApp(ScriptedSource())
    assert not app.is_terminal_behind
    with os.fdopen(source), os.fdopen(sink, "w") as terminal:
        writer = WriterThread(terminal)
        app._driver = SimpleNamespace(_writer_thread=writer)
        assert not app.is_terminal_behind
        writer.write("a frame")
        assert app.is_terminal_behind
        writer.start()
        wait_until(lambda: not app.is_terminal_behind)
        writer.stop()
