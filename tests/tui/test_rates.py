"""Rates and sparklines of the moment that is shown."""

from textual.pilot import Pilot

from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.header import throughput
from seqtop.tui.rendering.style import plain
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene


def test_rates_are_those_of_the_moment() -> None:
    source = ScriptedSource()
    app = SeqtopApp(source, clock=lambda: 0.0)
    shown: dict[float, str] = {}

    def note() -> None:
        app.ui.update()
        shown[app.ui.state.time] = plain(throughput(app.ui, 200))

    source.after_event = note
    scene(source)

    async def act(pilot: Pilot[int]) -> None:
        for _ in range(3):
            await pilot.press("left_curly_bracket")
            assert plain(throughput(app.ui, 200)) == shown[app.ui.state.time]
        await pilot.press("space")
        assert plain(throughput(app.ui, 200)) == shown[app.ui.newest.time]

    play(app, act)


def test_sparklines_of_a_replay_end_at_the_moment_on_show() -> None:
    history = MemoryStore()
    script = Script(ScriptedSource(history=history))
    script.arrive("req", num_prompt=4)
    script.step(prefill={"req": 4})
    for count in range(6):
        script.time += 1.0
        for _ in range(count + 1):
            script.step()
    replay = Playback(history, "run.seqtop", paused=True)
    app = SeqtopApp(replay, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        async def shown(*keys: str) -> int:
            await pilot.press(*keys)
            await pilot.pause()
            series, time = app.ui.step_series, app.ui.state.time
            num_seconds = len(series.sums_by_second("generated", time, 60))
            titles = [title for title in ("   tok/s ", "KV use ") if title in screen(app)]
            assert len(titles) == (2 if num_seconds else 0)
            return num_seconds

        assert await shown() == 0
        while app.ui.time_travel.position < history.last:
            await pilot.press("right")
        assert await shown() == 7
        assert await shown("colon", *"2.5s", "enter") == 2
        assert await shown("0") == 0

    play(app, act, (200, 40))
