"""The palette: typed words find commands by their titles, and by other words for them."""

from __future__ import annotations

import pytest
from textual.command import Hit

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.palette import KEYWORDS, PaletteCommands, match
from tests.support.piloting import Pilot, play, until, words
from tests.support.scripted import ScriptedSource, scene

TABS = "123456"
WAITS = "Whom it waits for, and what unblocks it"
ANSWERS = {
    "why": WAITS,
    "slow": "Show or hide latencies",
    "kv": "Blocks",
    "ttft": "Sort by TTFT",
    "bottleneck": "Overview",
    "export": "Share this moment: recording, picture, text",
    "spec": "Overview",
    "lora": "Sort by LoRA",
    "what if": "What if: other settings",
    "go step": "Go to a step or a time",
}


@pytest.fixture
def app() -> SeqtopApp:
    source = ScriptedSource()
    scene(source)
    return SeqtopApp(source, clock=lambda: 0.0)


def found(app: SeqtopApp, pilot: Pilot, query: str) -> list[str]:
    """Return the titles that a query finds, the best first."""

    async def search() -> list[Hit]:
        provider = PaletteCommands(app.screen)
        return [hit async for hit in provider.search(query) if isinstance(hit, Hit)]

    return [hit.text or "" for hit in sorted(pilot.run(search()), key=lambda hit: -hit.score)]


def test_words_that_people_ask_for_are_found_on_every_screen(app: SeqtopApp) -> None:
    ids = set()
    with play(app) as pilot:
        for tab in TABS:
            pilot.press(tab)
            ids |= {active.binding.id for active in app.screen.active_bindings.values()}
            for query, title in ANSWERS.items():
                titles = found(app, pilot, query)
                assert titles, (tab, query)
                if tab == "1":
                    assert title in titles, (query, titles)
    assert not KEYWORDS.keys() - ids


def test_letters_that_are_scattered_over_a_title_find_nothing() -> None:
    assert not match("why", "The whole pool, or a cell for every block", "")
    assert not match("kv", "Back to the last preemption", "")
    assert not match("", "Blocks", "")
    assert match("block", "Blocks", "") < match("blocks", "Blocks", "") == 1


def test_a_sort_order_is_chosen_from_another_screen(app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("2", "ctrl+p", *"ttft")
        until(pilot, lambda: "Sort by TTFT" in words(app))
        pilot.press("enter")
        until(pilot, lambda: app.ui.view.sort.key == "ttft")
        assert app.ui.view.sort.descending
        assert app.current_mode.startswith("sequences")
        until(pilot, lambda: "▼TTFT" in words(app))
