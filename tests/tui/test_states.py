"""What the screen says while things are not as they should be."""

import random

import pytest
from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.header import SENTENCES
from seqtop.tui.screens.sequences.table import Rows
from tests.support.piloting import play, screen
from tests.support.scripted import HOSTILE, MIXED, Script, ScriptedSource, engine_info, scene


@pytest.mark.parametrize("size", [(40, 10), (80, 24), (200, 60)])
def test_the_state_of_the_connection_is_a_word(
    source: ScriptedSource, app: SeqtopApp, size: tuple[int, int]
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for state in ConnectionState:
            source.connect(state)
            app.draw()
            await pilot.pause()
            text = screen(app)
            assert state.name in text.splitlines()[0]
            assert SENTENCES[state][:20] in text
            assert "req-1" in text

    play(app, act, size)


def test_the_connections_own_sentence_is_shown_whole(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    detail = "tcp://10.0.0.1:5557 speaks protocol version 9, this seqtop knows version 1."

    async def act(pilot: Pilot[int]) -> None:
        source.connect(ConnectionState.INCOMPATIBLE, detail)
        app.draw()
        await pilot.pause()
        assert detail in " ".join(screen(app).split())
        source.connect(ConnectionState.LIVE)
        app.draw()
        await pilot.pause()
        assert "speaks" not in screen(app)

    play(app, act, (50, 20))


def test_a_lost_engine_has_an_age(source: ScriptedSource) -> None:
    clock = [50.0]
    app = SeqtopApp(source, clock=lambda: clock[0])

    async def act(pilot: Pilot[int]) -> None:
        source.connect(ConnectionState.LOST)
        clock[0] += 125
        app.draw()
        await pilot.pause()
        assert "✗ LOST 2m 05s" in screen(app)
        source.connection.num_messages += 1
        source.connect(ConnectionState.LIVE)
        app.draw()
        await pilot.pause()
        assert "● LIVE" in screen(app)

    play(app, act)


def test_troubles_are_counted(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        assert "missed" not in screen(app)
        source.connection.num_missed, source.connection.num_errors = 1_234, 5
        source.state.report_anomaly("a thing that did not fit")
        source.connect(ConnectionState.LIVE)
        app.draw()
        await pilot.pause()
        assert "missed 1,234  errors 5  anomalies 1" in screen(app)

    play(app, act, (110, 24))


@pytest.mark.parametrize(
    ("info", "words"),
    [({"control": True}, "Press n to submit a prompt"), ({"control": False}, "Send the engine")],
)
def test_an_idle_engine_says_what_to_do(info: dict[str, bool], words: str) -> None:
    app = SeqtopApp(ScriptedSource(engine_info(**info)))

    async def act(pilot: Pilot[int]) -> None:
        assert "No sequences yet." in screen(app)
        assert words in screen(app)
        await pilot.press("x")
        await pilot.press("enter", "down", "G", "greater_than_sign", "f", "space", "space")
        assert "No sequence is selected." in screen(app)

    play(app, act)


def test_an_engine_never_heard_of_has_an_address() -> None:
    source = ScriptedSource()
    source.connect(ConnectionState.CONNECTING)
    app = SeqtopApp(source, title="seqtop")

    async def act(pilot: Pilot[int]) -> None:
        text = screen(app)
        assert "◌ CONNECTING" in text
        assert "No message from ipc:///run/demo yet." in text
        await pilot.press("n")
        assert len(app.screen_stack) == 1

    play(app, act)


def test_the_first_sequence_takes_the_hints_place() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        assert "No sequences yet." in screen(app)
        script.arrive("first")
        app.draw()
        await pilot.pause()
        assert "No sequences yet." not in screen(app)
        assert "▌first" in screen(app)

    play(app, act)


def test_a_restarted_engine_replaces_everything(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        fresh = ScriptedSource()
        script = Script(fresh, engine_id="again", incarnation="b2")
        script.arrive("new-1", "A new beginning.")
        source.replace(fresh.state)
        app.draw()
        await pilot.pause()
        text = screen(app)
        assert "again" in text
        assert "▌new-1" in text
        assert "req-1" not in text

    play(app, act)


def test_what_the_state_drops_leaves_the_table() -> None:
    source = ScriptedSource(max_finished=2)
    script = Script(source)
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        for index in range(6):
            script.arrive(f"r-{index}")
            script.step(
                prefill={f"r-{index}": 40}, stop={f"r-{index}": SequenceStatus.FINISHED_STOPPED}
            )
            app.draw()
            await pilot.pause()
        assert len(app.ui.view) == len(source.state.sequences) == 2
        assert app.ui.selected in source.state.sequences
        assert "6 finished" in screen(app)

    play(app, act)


def test_redacted_text_is_said_to_be() -> None:
    source = ScriptedSource(engine_info(redacted=True))
    script = Script(source, redacted=True)
    script.arrive("secret", prompt="", pieces=[""])
    script.step(prefill={"secret": 40})
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert "Redacted: this engine does not publish its texts." in screen(app)
        assert " redacted" in screen(app)  # where its text would be, in the table

    play(app, act)


FORBIDDEN = {chr(code) for code in [*range(0x20), *range(0x7F, 0xA0)]} | set(
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200d\u200e\u200f\ufe0f"
)


def test_nothing_hostile_reaches_the_terminal() -> None:
    source = ScriptedSource()
    info = dict.fromkeys(("engine_id", "model", "dtype", "device", "engine"), HOSTILE)
    script = Script(source, **info)
    names = [f"{HOSTILE}{index}" for index in range(3)]
    for name in names:
        script.arrive(name, HOSTILE + MIXED, pieces=[HOSTILE, MIXED])
    script.arrive("pair" + HOSTILE, n=2)
    script.step(prefill={names[0]: 40})
    script.step(prefill={names[1]: 40}, preempt={names[0]: names[1]})
    source.connection.endpoint = HOSTILE

    async def act(pilot: Pilot[int]) -> None:
        app = pilot.app

        def look() -> None:
            for strip in app.screen._compositor.render_strips():
                for segment in strip:
                    assert not FORBIDDEN & set(segment.text), segment
                    segment.text.encode()
                assert strip.cell_length == app.size.width

        for detail in ("", HOSTILE, HOSTILE * 20):
            source.connect(ConnectionState.LOST if detail else ConnectionState.LIVE, detail)
            app.draw()
            await pilot.pause()
            look()
        source.connect(ConnectionState.LIVE)
        for key in ["enter", "down", "down", "down", "right_square_bracket",
                    "right_square_bracket", "x", "n", "space", "slash", "escape", "s"]:  # fmt: skip
            await pilot.press(key)
            await pilot.pause()
            look()

    for size in ((80, 24), (200, 60)):
        play(SeqtopApp(source, title=HOSTILE), act, size)


def test_a_terminal_resized_a_hundred_times(app: SeqtopApp) -> None:
    chance = random.Random(4)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        for _ in range(100):
            await pilot.resize_terminal(chance.randrange(10, 130), chance.randrange(3, 40))
        await pilot.resize_terminal(80, 24)
        await pilot.press("home")
        await pilot.pause()
        lines = screen(app).splitlines()
        assert lines[0].startswith(" demo")
        assert any(line.startswith("▌req-1 ") for line in lines)
        assert "q Quit" in lines[-1]

    play(app, act)


@pytest.mark.parametrize("size", [(40, 10), (20, 5), (1, 1), (300, 8), (10, 100)])
def test_odd_terminals_are_survived(app: SeqtopApp, size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for key in ("enter", "down", "G", "slash", "escape", "s", "escape", "n", "escape",
                    "question_mark", "escape", "d", "space"):  # fmt: skip
            await pilot.press(key)
        await pilot.pause()
        assert app.ui.paused
        await pilot.press("q")
        assert app._exit

    play(app, act, size)


def test_forty_by_ten_is_readable(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        lines = screen(app).splitlines()
        assert lines[0].startswith(" demo")
        assert lines[0].rstrip().endswith("● LIVE")
        assert "8 running" in lines[1]
        assert lines[3].startswith("▌req-1      ● running ")
        assert app.screen.query_one(Rows).size.height >= 6
        await pilot.press("enter")
        await pilot.pause()
        lines = screen(app).splitlines()
        assert lines[2].startswith("▌req-1  ")
        assert lines[3].startswith(" req-1  ● running")
        assert "Decoding: 41 of at most 64 tokens so" in lines[4]
        await pilot.press("j")
        await pilot.pause()
        assert screen(app).splitlines()[2].startswith("▌req-2  ")
        await pilot.press("d", "k")
        await pilot.pause()
        assert screen(app).splitlines()[3].startswith("▌req-1  ")

    play(app, act, (40, 10))


@pytest.mark.parametrize("theme", ["seqtop-light", "textual-light", "nord", "dracula"])
def test_other_themes_work(app: SeqtopApp, theme: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        app.theme = theme
        await pilot.pause()
        assert "req-1" in screen(app)

    play(app, act)


def test_the_state_is_swapped_while_paused(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("space")
        other = ScriptedSource()
        scene(other, engine_id="again")
        source.replace(other.state)
        app.draw()
        await pilot.pause()
        assert " demo " in screen(app)
        await pilot.press("space")
        await pilot.pause()
        assert " again " in screen(app)
        source.replace(EngineState())
        app.draw()
        await pilot.pause()
        assert "req-1" not in screen(app)

    play(app, act)
