"""Latencies and objectives on the screen."""

from seqtop.demo import RECORDED_RUN
from seqtop.history import FileStore
from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.state.slo import FIGURES
from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.bars import SPARKS
from seqtop.tui.settings import Settings
from tests.support.piloting import notices, play, rows, screen, until
from tests.support.scripted import Script, ScriptedSource, engine_info, scene


def watching(settings: Settings) -> tuple[Script, SeqtopApp]:
    """An app that has watched the scene from its beginning."""
    source = ScriptedSource()
    app = SeqtopApp(source, clock=lambda: 0.0, settings=settings)
    source.after_event = app.ui.update
    return scene(source, hostile="?"), app


def test_latencies_and_goodput() -> None:
    script, app = watching(Settings(slo={"ttft": "100ms", "itl": 0.06}))
    with play(app, (130, 40)) as pilot:
        assert "Goodput" not in screen(app)
        pilot.press("l")
        lines = {line.split()[0]: line for line in rows(app) if line.strip()}
        assert lines["TTFT"].startswith(" TTFT     90.0 ms  !155 ms  !159 ms  !160 ms        10  ")
        assert "50.0 ms" in lines["ITL"]
        assert "100%  2 of 2 ended  TTFT ≤ 100 ms, ITL ≤ 60.0 ms" in lines["Goodput"]
        assert "!112 ms" in lines["req-4"]
        assert " !62 ms" in lines["req-5"], "the sign touches no other column"
        assert "!" not in lines["req-1"]
        assert f"!{fmt.UNKNOWN}" in lines["req-8"]  # it waits for its first token still
        script.source.after_event = None  # the app looks by itself
        script.time += 61.0
        script.step(decode=["req-1"])
        app.draw()
        until(pilot, lambda: "!155 ms" not in screen(app))  # a second later
        lines = {line.split()[0]: line for line in rows(app) if line.strip()}
        assert lines["TTFT"].split()[1:6] == [fmt.UNKNOWN] * 4 + ["0"]  # all that was is too old
        pilot.press("l")
        assert "Goodput" not in screen(app)


def test_a_wide_terminal_has_two_columns_with_the_past_of_a_recording() -> None:
    with FileStore(RECORDED_RUN) as store:
        app = SeqtopApp(Playback(store, "run.seqtop", paused=True, position=store.last))
        with play(app, (200, 56)):
            (row,) = (line for line in rows(app) if line.lstrip().startswith("ITL "))
            assert "E2E" in row, "beside it"
            spark = row.split("E2E")[0].split()[-1]
            assert len(spark) >= 15, "a figure for each second, although nothing was played"
            assert set(spark) <= set(SPARKS)


def test_limits_are_set_while_the_app_runs() -> None:
    _, app = watching(Settings(latency=True))
    with play(app, (130, 40)) as pilot:
        assert "no limits; D sets some" in screen(app)
        pilot.press("D", *"itl=x", "enter")
        assert "itl: 'x' is not a time" in screen(app)
        pilot.press(*["backspace"] * 5, *"ttft=100ms,itl=0.06", "enter", "enter")
        assert "100%  2 of 2 ended  TTFT ≤ 100 ms, ITL ≤ 60.0 ms" in screen(app)
        assert "!112 ms" in screen(app)
        pilot.press("D", *["backspace"] * 20, "enter")  # "ttft=0.1,itl=0.06"
        assert "no limits" in screen(app)
        assert "!" not in screen(app)


def test_past_latencies_are_shown_while_paused() -> None:
    script, app = watching(Settings(latency=True))
    with play(app, (100, 40)) as pilot:

        def ttft() -> str:
            return next(line for line in rows(app) if line.startswith(" TTFT"))

        before = ttft().split()[:12]
        pilot.press("space")
        script.arrive("late", num_prompt=8)
        script.time += 70.0
        script.step(prefill={"late": 8})
        pilot.draw()
        assert ttft().split()[:12] == before
        pilot.press("space")
        assert ttft().split()[8:10] == ["s", "2"]
        pilot.press("0")  # a move through time is drawn at once
        assert ttft().split()[1:6] == [fmt.UNKNOWN] * 4 + ["0"]


def test_an_engine_started_anew_is_not_mixed_with_what_it_was_before() -> None:
    script, app = watching(Settings(latency=True))
    with play(app, (130, 40)) as pilot:

        def figures() -> dict[str, str]:
            lines = [line for line in rows(app) if line.strip()]
            return {line.split()[0]: line for line in lines if line.split()[0] in FIGURES.values()}

        before = figures()
        pilot.press("space")
        assert figures() == before
        script.source.after_event = None
        info = engine_info(incarnation="b2")
        script.source.replace(EngineState(info=info, time=script.time + 1.0))
        anew = Script(script.source, incarnation="b2")
        anew.time = script.time + 1.5
        pilot.draw()
        assert figures() == before  # the moment on show is of the old start
        pilot.press("space")
        for line in figures().values():
            assert line.split()[1:] == [fmt.UNKNOWN] * 4 + ["0"] + line.split()[6:]
            assert not {*SPARKS[1:]} & {*line}
        anew.arrive("first", num_prompt=8)
        anew.step(prefill={"first": 8})
        app.draw()
        pilot.press("l", "l")  # draws it anew, without the second of waiting
        assert figures()["TTFT"].split()[9] == "1"
        assert figures()["ITL"].split()[5] == "0"


def test_a_burst_is_one_notice() -> None:
    script, app = watching(Settings(slo={"queue": 1.0}))
    with play(app, (100, 30)) as pilot:
        script.source.after_event = None
        app.ui.latencies.take_alerts()
        before = len(notices(app))
        for index in range(5):
            script.arrive(f"slow-{index}", num_prompt=8)
        script.time += 2.0
        for index in range(5):
            script.step(prefill={f"slow-{index}": 8}, decode=[])
            app.draw()
        pilot.pause()
        said = notices(app)[before:]
        assert len(said) == 1
        assert "missed its objective: Queue 2." in said[0]
