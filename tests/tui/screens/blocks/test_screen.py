"""The block map: what its cells say, and every key on it."""

import re
from typing import Any

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.filter_bar import FilterBar
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.block_screen import pool, sequence, table
from tests.support.piloting import play, screen, until, words
from tests.support.scripted import Script, ScriptedSource, scene


def test_enter_goes_to_the_owner_and_back_again_is_its_block(app: SeqtopApp) -> None:
    with play(app, (80, 14)) as pilot:
        block = table(app, "req-5")[1]
        pilot.press("b", *str(block), "enter", "enter")
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.cursor.seq_id == sequence(app, "req-5")
        assert "▌req-5" in screen(app)
        pilot.press("2")
        assert pool(app).cursor == block
        pilot.press("1", "up", "2")
        assert pool(app).cursor == table(app, "req-4")[0]


def test_it_fits_a_terminal_that_was_resized_elsewhere(app: SeqtopApp) -> None:
    with play(app, (200, 60)) as pilot:
        pilot.press("2")
        assert "slots unfilled" in screen(app)
        pilot.press("1", "T")
        pilot.resize_terminal(80, 24)
        pilot.press("2")
        until(pilot, lambda: "slots unfilled" in screen(app))


def test_a_wide_legend_says_how_much_of_the_slots_is_unfilled() -> None:
    source = ScriptedSource()
    scene(source)
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (200, 60)) as pilot:
        pilot.press("2")
        (unfilled,) = re.findall(r"(\d+) slots unfilled, [\d.]+%   ", screen(app))
        assert app.ui.state.info is not None
        app.ui.state.info.bytes_per_block = 16_000
        pilot.press("1", "2")
        assert re.search(rf"{unfilled} slots unfilled, [\d.]+%, {unfilled}.* kB   ", screen(app))


def test_the_blocks_of_the_selected_sequence_one_by_one(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        blocks = table(app, "req-1")
        pilot.press("2")
        assert pool(app).cursor == blocks[0]
        for block in [*blocks[1:], blocks[0]]:
            pilot.press("greater_than_sign")
            assert pool(app).cursor == block
        pilot.press("less_than_sign")
        assert pool(app).cursor == blocks[-1]
        pilot.press("b", *"255", "enter", "greater_than_sign")
        assert pool(app).cursor == blocks[0]


def test_an_owner_that_the_filter_hides_is_shown_all_the_same(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("slash", *"req-1", "enter")
        pilot.press("b", *str(table(app, "req-5")[0]), "enter", "enter")
        sequences: Any = app.screen
        assert isinstance(sequences, SequencesScreen)
        assert app.ui.cursor.seq_id == sequence(app, "req-5")
        assert not sequences.query_one(FilterBar).display
        assert "▌req-5" in screen(app)


def test_the_past_shows_the_blocks_of_then() -> None:
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=40)
    script.arrive("one")
    script.step(prefill={"one": 40})
    for _ in range(10):
        script.step()
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        pilot.press("2")
        assert len(pool(app).index.blocks(1)) == 4
        pilot.press("0")
        assert "The engine has published no blocks yet." in screen(app)
        pilot.press(*["full_stop"] * 3)
        assert len(pool(app).index.blocks(1)) == 3
        assert "',' '.' step, space resumes." in words(app)
        pilot.press("L")
        pilot.draw()
        assert len(pool(app).index.blocks(1)) == 4
