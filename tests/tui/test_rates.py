"""Rates and sparklines of the moment that is shown."""

from textual.pilot import Pilot

from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rates import RateMeter
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene


def test_rates_are_those_of_the_moment() -> None:
    source = ScriptedSource()
    meter = RateMeter()
    taken: list[tuple[float, object]] = []

    def look() -> None:
        meter.sample(source.state)
        taken.append((source.state.time, meter.rates))

    app = SeqtopApp(source, clock=lambda: 0.0)
    source.after_event = lambda: (look(), app.ui.update())
    scene(source, hostile="?")
    assert len({rates for _, rates in taken}) > 2
    for time, rates in taken:
        assert meter.at(time) == rates
    assert meter.at(0.0).tokens_out is None

    async def act(pilot: Pilot[int]) -> None:
        newest = app.ui.rates
        await pilot.press("left_curly_bracket", "left_curly_bracket")
        assert app.ui.rates == meter.at(app.ui.state.time) != newest
        await pilot.press("space")
        assert app.ui.rates == newest

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
            rates = app.ui.rates
            assert len(rates.kv_history) == len(rates.out_history)
            titles = [title for title in ("   tok/s ", "KV use ") if title in screen(app)]
            assert len(titles) == (2 if rates.out_history else 0)
            return len(rates.out_history)

        assert await shown() == 0
        while app.ui.time_travel.position < history.last:
            await pilot.press("right")
        assert await shown() == 6
        assert await shown("colon", *"2.5s", "enter") == 2
        assert await shown("0") == 0

    play(app, act, (200, 40))
