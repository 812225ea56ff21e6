"""What is not done before the first frame."""

import asyncio
import gc

import pytest
from scripted import ScriptedSource, scene
from textual.css.stylesheet import Stylesheet

from seqtop.tui.app import SeqtopApp


def test_style_sheets_are_not_parsed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        parsed: list[Stylesheet] = []
        monkeypatch.setattr(Stylesheet, "reparse", parsed.append)
        async with SeqtopApp(scene(ScriptedSource()).source).run_test():
            assert not parsed

    asyncio.run(run())


def test_nobody_looks_for_garbage_in_what_has_been_loaded() -> None:
    async def run() -> None:
        app = SeqtopApp(scene(ScriptedSource()).source)
        before = gc.get_stats()[2]["collections"]
        async with app.run_test() as pilot:
            await pilot.pause()
            assert gc.get_stats()[2]["collections"] == before

    asyncio.run(run())
