"""The help lists every key and nothing else, and can be read in a small terminal."""

from typing import Any

import msgspec
from textual.binding import Binding
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.help import HelpScreen, grouped
from seqtop.tui.keymap import GROUPS
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import play, screen, until
from tests.support.scripted import ScriptedSource


def test_help_lists_every_key_and_nothing_else(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        bound = {
            key: active.binding.tooltip or active.binding.description
            for key, active in app.screen.active_bindings.items()
        }
        await pilot.press("question_mark")
        help_screen: Any = app.screen
        assert isinstance(help_screen, HelpScreen)
        listed = {
            binding.key: description
            for entries in help_screen.entries.values()
            for bindings, description in entries
            for binding in bindings
        }
        assert listed == bound
        assert set(help_screen.entries) == set(GROUPS.values())
        text = str(help_screen.query_one("#help-content").render())
        for description in bound.values():
            assert description
            assert description in text
        await pilot.press("escape")
        assert isinstance(app.screen, SequencesScreen)

    play(app, act, (100, 80))


def test_grouped_keeps_all_keys_of_an_action_together() -> None:
    bindings = [
        Binding("a", "x", "Do", id="move.a"),
        Binding("b", "x", "Do", id="move.a"),
        Binding("c", "y", "Other"),
    ]
    listed = grouped(bindings)
    assert [([b.key for b in keys], text) for keys, text in listed["Move"]] == [(["a", "b"], "Do")]
    assert [text for _, text in listed["seqtop"]] == ["Other"]


def test_the_help_is_legible_in_a_narrow_terminal(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: "2        Blocks" in screen(app))

    play(app, act, (40, 16))


def test_help_says_that_it_goes_on(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "↓ for more" in screen(app)
        await pilot.press("end")
        await pilot.pause()
        assert "↓ for more" not in screen(app)
        assert "Esc closes, / searches" in screen(app)

    play(app, act, (80, 24))


def test_help_is_searched(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark", "slash", *"preemption")
        await pilot.pause()
        text = screen(app)
        assert "Back to the last preemption" in text
        assert "tokens lost to preemption" in text, "a note"
        assert "Choose and order the columns" not in text
        await pilot.press("escape")
        await pilot.pause()
        assert "Go to the next pane" in screen(app)
        await pilot.press("escape")
        assert isinstance(app.screen, SequencesScreen)

    play(app, act, (160, 50))


def test_what_an_engine_cannot_give_is_marked_and_explained(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    assert source.state.info is not None
    assert source.state.stats is not None
    reasons = {"hit": "the scheduler has no such thing", "cached_blocks": "it does not count them"}
    source.state.info = msgspec.structs.replace(source.state.info, not_available=reasons)
    source.state.stats = msgspec.structs.replace(source.state.stats, num_cached_blocks=None)

    async def act(pilot: Pilot[int]) -> None:
        source.replace(source.state)
        await until(pilot, lambda: "n/a cached" in screen(app))
        rows = [line for line in screen(app).splitlines() if "● running" in line]
        assert rows
        assert all("n/a" in row for row in rows)
        await pilot.press("question_mark")
        await until(pilot, lambda: "Not available (n/a)" in screen(app))
        text = " ".join(screen(app).split())
        assert "Hit the scheduler has no such thing" in text
        assert "cached blocks it does not count them" in text
        await pilot.press("escape", "2")
        await until(pilot, lambda: "free or cached" in screen(app))

    play(app, act, (200, 60))


def test_without_anything_missing_the_help_says_nothing_of_it(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        await until(pilot, lambda: "Filter" in screen(app))
        assert "Not available" not in screen(app)

    play(app, act, (200, 60))
