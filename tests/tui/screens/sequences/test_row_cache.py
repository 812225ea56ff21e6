"""The rows that the table keeps are those that it would make again."""

import random

import pytest
from textual.pilot import Pilot

from seqtop.state.fields import FIELDS
from seqtop.state.filter import parse
from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.sequences.table import Rows
from tests.support.event_script import EventScript
from tests.support.piloting import play
from tests.support.scripted import ScriptedSource

COLUMNS = tuple(key for key, field in FIELDS.items() if field.grows is None)
"""The columns whose cells do not change within a second, in which a kept row is older."""


@pytest.mark.parametrize("seed", range(24))
def test_kept_rows_equal_rows_made_again(seed: int) -> None:
    chance = random.Random(seed)
    source = ScriptedSource()
    app = SeqtopApp(source, clock=lambda: 0.0)
    num_rows = 0

    async def act(pilot: Pilot[int]) -> None:
        nonlocal num_rows
        table, rows = app.screen, app.screen.query_one(Rows)
        assert isinstance(table, SequencesScreen)
        app.ui.preferences.columns = COLUMNS
        table.show_all()
        for number, event in enumerate(EventScript(seed, 50, num_blocks=24)):
            source.apply(event)
            if number == 60:
                app.start_checking()
            if number % 25 == 24:
                chosen = chance.choice(["sort", "filter", "search", "columns", "key"])
                if chosen == "sort":
                    app.ui.sort_by(Sort(chance.choice(COLUMNS), chance.random() < 0.5))
                elif chosen == "filter":
                    app.ui.filter_by(parse(chance.choice(["", "status:running", "out>2"])))
                elif chosen == "search":
                    app.ui.view.search(app.ui.state, parse(chance.choice(["", "1", "req"])))
                    table.show_all()
                elif chosen == "columns":
                    app.ui.preferences.columns = tuple(chance.sample(COLUMNS, len(COLUMNS) // 2))
                    table.show_all()
                else:
                    await pilot.press(chance.choice(["space", "left", "0", "z", "down"]))
            if chance.random() < 0.3:
                app.draw()
                with app.ui.lock:
                    for key in rows.visible_keys():
                        assert rows.line(key) == rows._make_line(key)
                        num_rows += 1

    play(app, act, (160, 40))
    assert num_rows > 20
