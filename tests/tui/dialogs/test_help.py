"""The help lists every key and nothing else, and can be read in a small terminal."""

from functools import partial
from typing import Any

import msgspec
import pytest
from textual.binding import Binding

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.help import HelpScreen, grouped
from seqtop.tui.keymap import GROUPS
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import play, screen, until, words
from tests.support.scripted import ScriptedSource


def test_help_lists_every_key_and_nothing_else(app: SeqtopApp) -> None:
    with play(app, (80, 80)) as pilot:
        bound = {
            key: active.binding.tooltip or active.binding.description
            for key, active in app.screen.active_bindings.items()
        }
        pilot.press("question_mark")
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
        text = " ".join(str(help_screen.query_one("#help-content").render()).split())
        for description in bound.values():
            assert description
            assert description in text
        pilot.press("escape")
        assert isinstance(app.screen, SequencesScreen)


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
    with play(app, (40, 16)) as pilot:
        pilot.press("question_mark")
        until(pilot, lambda: "2        Blocks" in screen(app))


@pytest.mark.parametrize(
    ("size", "scrolls"), [((120, 40), True), ((200, 60), False), ((400, 100), False)]
)
def test_the_help_uses_the_width(app: SeqtopApp, size: tuple[int, int], scrolls: bool) -> None:
    with play(app, size) as pilot:
        pilot.press("question_mark")
        until(pilot, lambda: ("↓ for more" in screen(app)) is scrolls)
        first = next(line for line in screen(app).splitlines() if " Screens " in line)
        assert first.strip("│ ") != "Screens", "something is beside it"


def test_help_says_that_it_goes_on(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("question_mark")
        assert "↓ for more" in screen(app)
        pilot.press("end")
        assert "↓ for more" not in screen(app)
        assert "Esc closes, / searches" in screen(app)


def test_a_second_question_mark_explains_the_words_of_the_screen(app: SeqtopApp) -> None:
    with play(app, (80, 40)) as pilot:
        for key, word, meaning in (
            ("1", "Waited", "time in the queue"),
            ("2", "logical block", "the position of a block"),
            ("3", "▒ preempted", "waits again; its blocks"),
            ("4", "Ex-fwd", "seconds of executing the model"),
            ("6", "ex-fwd", "executing the model outside"),
        ):
            pilot.press(key, "question_mark")
            assert meaning not in words(app)
            until(pilot, lambda: "? explains words" in screen(app))
            pilot.press("question_mark")
            until(pilot, partial(_explains, app, f"{word} {meaning}"))
            pilot.press("end", "question_mark")
            assert not isinstance(app.screen, HelpScreen)


def _explains(app: SeqtopApp, text: str) -> bool:
    return text in words(app)


def test_help_is_searched(app: SeqtopApp) -> None:
    with play(app, (160, 50)) as pilot:
        pilot.press("question_mark", "slash", *"preemption")
        text = screen(app)
        assert "Back to the last preemption" in text
        assert "tokens lost to preemption" in text, "a note"
        assert "Choose and order the columns" not in text
        pilot.press(*"zz")
        assert "Nothing here contains that text" in screen(app)
        pilot.press("escape", "slash", *"GO")
        assert "Go to the next pane" in screen(app)
        pilot.press("escape")
        assert "Go to the next pane" in screen(app)
        pilot.press("escape")
        assert isinstance(app.screen, SequencesScreen)


def test_figures_that_an_engine_cannot_give_are_marked_and_explained(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    assert source.state.info is not None
    assert source.state.stats is not None
    reasons = {"hit": "the scheduler has no such thing", "cached_blocks": "it does not count them"}
    source.state.info = msgspec.structs.replace(source.state.info, not_available=reasons)
    source.state.stats = msgspec.structs.replace(source.state.stats, num_cached_blocks=None)
    with play(app, (240, 60)) as pilot:
        source.replace(source.state)
        until(pilot, lambda: "n/a cached" in screen(app))
        rows = [line for line in screen(app).splitlines() if "● running" in line[:40]]
        assert rows
        assert all("n/a" in row for row in rows)
        pilot.press("question_mark")
        until(pilot, lambda: "Not available (n/a)" in screen(app))
        text = words(app)
        assert "Hit the scheduler has no such thing" in text
        assert "cached blocks it does not count them" in text
        pilot.press("escape", "2")
        until(pilot, lambda: "free or cached" in screen(app))


def test_without_anything_missing_the_help_says_nothing_of_it(app: SeqtopApp) -> None:
    with play(app, (200, 60)) as pilot:
        pilot.press("question_mark")
        until(pilot, lambda: "Filter" in screen(app))
        assert "Not available" not in screen(app)
