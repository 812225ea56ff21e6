"""Work that is not done before the first frame."""

import asyncio
import gc
import subprocess
import sys
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet
from textual.geometry import Size
from textual.screen import Screen

from seqtop.cli import COMMANDS
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource, scene


def test_style_sheets_are_not_parsed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        parsed: list[Stylesheet] = []
        monkeypatch.setattr(Stylesheet, "reparse", parsed.append)
        async with SeqtopApp(scene(ScriptedSource()).source).run_test():
            assert not parsed

    asyncio.run(run())


def test_screens_are_laid_out_again_for_another_size_only(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[Screen[Any]] = []
    lay_out = Screen._screen_resized

    def spy(resized: Screen[Any], size: Size) -> None:
        if resized.outer_size == size:
            again.append(resized)
        lay_out(resized, size)

    monkeypatch.setattr(Screen, "_screen_resized", spy)
    app = SeqtopApp(scene(ScriptedSource()).source, clock=lambda: 0.0)
    with play(app, (100, 30)) as pilot:
        pilot.press("2", "question_mark")
        pilot.resize_terminal(80, 24)
        assert again == []
        assert app.screen.outer_size == (80, 24)
        pilot.press("escape")
        assert app.screen.outer_size == (80, 24)
        assert all(len(line) <= 80 for line in screen(app).splitlines())


def test_garbage_is_collected_from_the_first_frame_on() -> None:
    async def run() -> None:
        gc.disable()  # as `run_app` does
        async with SeqtopApp(scene(ScriptedSource()).source).run_test() as pilot:
            await pilot.pause()
            assert gc.isenabled()
            assert gc.get_threshold() == (5_000, 1, 60)

    thresholds = gc.get_threshold()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as after the collection of tests


def test_screens_dialogs_and_commands_are_imported_when_they_are_opened() -> None:
    code = """
import asyncio, sys
from seqtop.cli import main
from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.history.memory_store import MemoryStore
from seqtop.tui.app import SeqtopApp

try:
    main.main(["attach", "nowhere"])
except SystemExit:
    pass
history = MemoryStore()
history.restore("a", 0, EngineState())

async def run():
    async with SeqtopApp(Playback(history, "nothing")).run_test() as pilot:
        await pilot.pause()

asyncio.run(run())
print(*sys.modules, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    inside = {name for name in loaded if name.startswith("seqtop.tui.screens.")}
    screens = {name.split(".")[3] for name in inside if name.count(".") > 3}
    assert screens == {"sequences"}
    commands = {name.rpartition(".")[2] for name in loaded if name.startswith("seqtop.cli.")}
    assert commands & {*COMMANDS} == {"attach"}
    assert not {name for name in loaded if name.startswith("seqtop.kv")}
