"""Sequences of one request, drawn below the one they descend from."""

import re

from seqtop.sequence import SequenceStatus
from seqtop.tui.app import SeqtopApp
from tests.support import events
from tests.support.events import update
from tests.support.piloting import notices, play, rows
from tests.support.scripted import Script, ScriptedSource


def names(app: SeqtopApp) -> list[str]:
    """The text of the first column, without the cursor's mark."""
    lines = rows(app)
    first = next(index for index, line in enumerate(lines) if line.startswith(" Request"))
    return [re.split("  | [●◐○]", line[1:20])[0].rstrip() for line in lines[first + 1 : -2]]


def beams() -> Script:
    """A request with two sequences, the first of which forks; another alone."""
    script = Script(ScriptedSource())
    script.arrive("beam", n=2)
    script.arrive("alone")
    script.step(prefill={"beam": 40, "alone": 40})
    script.source.apply(
        events.step(
            script.number,
            start_time=script.time,
            time=script.time + 0.01,
            sequences=[update(9, SequenceStatus.RUNNING, 40, parent=1, request_id="beam")],
            stats=script.stats(0, 0),
        )
    )
    return script


def test_the_tree_can_be_folded_and_turned_off() -> None:
    app = SeqtopApp(beams().source, clock=lambda: 0.0)
    with play(app, (100, 20)) as pilot:
        whole = ["▾beam/1", "├ beam/2", "└ beam/3", "alone"]
        assert names(app)[:4] == whole
        pilot.press("z")
        assert names(app)[:2] == ["▸beam/1 +2", "alone"]
        pilot.press("z", "down", "z")  # on a child it folds the family it is in
        assert names(app)[:2] == ["▸beam/1 +2", "alone"]
        assert app.ui.cursor.seq_id == 1
        pilot.press("Z")
        assert names(app)[:4] == whole
        pilot.press("end", "up", "Z")
        assert names(app)[:2] == ["▸beam/1 +2", "alone"]
        assert app.ui.cursor.seq_id == 1
        pilot.press("Z", "t")
        assert names(app)[:4] == ["beam/1", "beam/2", "beam/3", "alone"]
        pilot.press("end", "z")
        assert notices(app) == ["This sequence has nothing to fold."]


def test_a_fork_draws_the_branches_it_changes() -> None:
    script = beams()
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    with play(app, (130, 20)) as pilot:
        fork = update(12, SequenceStatus.RUNNING, 40, parent=9, request_id="beam")
        other = update(11, SequenceStatus.RUNNING, 40, parent=1, request_id="beam")
        script.source.apply(
            events.step(
                9,
                start_time=script.time,
                time=script.time + 0.01,
                sequences=[fork, other],
                stats=script.stats(0, 0),
            )
        )
        pilot.draw()
        assert names(app)[:5] == ["▾beam/1", "├ beam/2", "├ ▾beam/3", "│ └ beam/4", "└ beam/5"]
