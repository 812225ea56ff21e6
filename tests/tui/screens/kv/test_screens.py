"""The app for KV-cache events: what it shows, where its keys lead, how it looks."""

from collections import Counter
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.kv_events.messages import AllBlocksCleared, BlockRemoved, UnknownEvent
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.kv.app import KvApp
from tests.support.kv_scene import HOSTILE, ScriptedKvSource, digest, run, scene
from tests.support.piloting import play, screen


@pytest.fixture
def source() -> ScriptedKvSource:
    source = ScriptedKvSource()
    scene(source)
    return source


def app_of(source: ScriptedKvSource, **options: object) -> KvApp:
    return KvApp(source, clock=lambda: 0.0, **options)


def test_a_chain_is_walked_by_keys(source: ScriptedKvSource) -> None:
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        assert app.ui.block.key == (0, digest(1, 0))
        await pilot.press(*"]" * 9)
        assert app.ui.block.key == (0, digest(1, 9))
        assert "continued in 3 ways" in screen(app)
        await pilot.press("]")
        assert app.ui.block.key == (0, digest(5, 0)), "the one stored last"
        await pilot.press("o")
        assert app.ui.block.key == (0, digest(1, 10))
        await pilot.press("[")
        assert app.ui.block.key == (0, digest(1, 9))
        assert "block 10 of its prefix, tokens 144 to 159" in screen(app)
        await pilot.press("left_square_bracket", *"[" * 9)
        assert app.ui.block.key == (0, digest(1, 0))
        await pilot.press("end")
        assert app.ui.cursor == ("CPU", 54)
        await pilot.press("home", "up", "down", "up")
        assert app.ui.cursor == ("GPU", 0)

    play(app, act, (120, 40))


def test_a_tree_leads_to_its_blocks(source: ScriptedKvSource) -> None:
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "down", "down")
        assert "its first block is not known" not in screen(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.ui.block.key == (0, digest(3, 0))
        assert "LoRA poems" in screen(app)

    play(app, act, (100, 30))


def test_what_is_not_known_is_said_and_never_a_zero() -> None:
    source = ScriptedKvSource()
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        assert "no message yet" in screen(app)
        assert "blocks 0" not in screen(app)
        source.send(run(1, 4, 2, digest(1, 3), medium=None), UnknownEvent(HOSTILE))
        source.cache.mark_gap("2 messages before number 7 missing")
        app.draw()
        await pilot.pause()
        shown = screen(app)
        assert "▲ GAP" in shown
        assert "Not all is known: 2 messages before number 7 missing." in shown
        assert "unknown tier" in shown
        assert "at least block 2 of its prefix" in shown
        assert "kinds not understood 1" in shown
        await pilot.press("2")
        await pilot.pause()
        assert "its first block is not known to be cached" in screen(app)
        source.send(AllBlocksCleared())
        app.draw()
        await pilot.press("1")
        await pilot.pause()
        assert "▲ GAP" not in screen(app)
        assert "No block is known to be cached." in screen(app)
        await pilot.press("[", "]", "o", "right", "down", "end", "2", "enter")

    play(app, act, (100, 30))


def test_a_lost_connection_is_seen(source: ScriptedKvSource) -> None:
    source.connection.state = ConnectionState.LOST
    source.connection.detail = "the connection to tcp://127.0.0.1:5557 is lost"
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        assert "✗ LOST" in screen(app)
        assert "The connection to tcp://127.0.0.1:5557 is lost." in screen(app)

    play(app, act)


def test_hostile_names_reach_no_terminal() -> None:
    source = ScriptedKvSource()
    more = {"lora_name": HOSTILE, "kv_cache_spec_kind": HOSTILE, "medium": HOSTILE}
    source.send(run(1, 0, 3, **more), time=float("nan"))
    app = app_of(source, decode=lambda ids: HOSTILE * len(ids))

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "1")
        await pilot.pause()
        shown = screen(app)
        assert "␛]52;c;YQ==␇[red]" in shown
        assert not set("\x1b\x07\u202e") & set(shown)

    play(app, act, (160, 30))


def test_only_lines_that_changed_are_drawn(
    source: ScriptedKvSource, lines: Counter[LineView]
) -> None:
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        blocks = app.screen._map
        await pilot.pause()
        before = lines[blocks]
        source.send(BlockRemoved([digest(5, 8)], "GPU", 0))
        app.draw()
        await pilot.pause()
        # The tier's title, with one block less, and the row that the block was in.
        assert lines[blocks] - before == 2

    play(app, act)


def test_a_frame_may_be_drawn_when_its_cells_are_gone(source: ScriptedKvSource) -> None:
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        blocks = app.screen._map
        await pilot.press("end")
        source.send(AllBlocksCleared(), run(9, 0, 2, medium="DISK"), run(9, 0, 1))
        blocks.visible_lines(0, blocks.size.height)
        blocks.action_move(1)
        blocks.action_rows(-1)
        app.draw()
        await pilot.pause()
        assert "DISK  2 blocks" in screen(app)

    play(app, act)


def test_help_names_its_own_keys_only(source: ScriptedKvSource) -> None:
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("?")
        await pilot.pause()
        shown = screen(app)
        assert "prefix tree" in shown
        assert "ttft" not in shown.lower()
        assert "Filter" not in shown
        await pilot.press("escape", "T", "q")

    play(app, act, (100, 60))


@pytest.mark.parametrize("look", ["dark", "light", "no-colour"])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", ["blocks", "trees"])
def test_screen(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    source: ScriptedKvSource,
    name: str,
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    if name == "trees":
        source.cache.mark_gap("3 messages before number 41 missing")
        source.connection.num_missed = 3
    app = app_of(source, decode=lambda ids: " ".join(f"w{each}" for each in ids))

    async def turn(pilot: Pilot[int]) -> None:
        if look == "light":
            app.theme = "seqtop-light"
        if name == "blocks":
            await pilot.press(*"]" * 11)
        else:
            await pilot.press("2")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=turn)
