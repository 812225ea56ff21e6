"""The help lists every key and nothing else, and can be read in a small terminal."""

from textual.binding import Binding
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.help import HelpScreen, grouped
from seqtop.tui.keymap import GROUPS
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import play, screen, until


def test_help_lists_every_key_and_nothing_else(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        bound = {
            key: active.binding.tooltip or active.binding.description
            for key, active in app.screen.active_bindings.items()
        }
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        listed = {
            binding.key: description
            for entries in app.screen.entries.values()
            for bindings, description in entries
            for binding in bindings
        }
        assert listed == bound
        assert set(app.screen.entries) == set(GROUPS.values())
        text = str(app.screen.query_one("#help-content").render())
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
        assert "Esc closes" in screen(app)

    play(app, act, (80, 24))
