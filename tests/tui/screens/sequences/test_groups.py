"""The table grouped by a key, with rows that fold."""

import re

from seqtop.tui.app import SeqtopApp
from tests.support.events import wait_reason
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource


def _script() -> Script:
    """Two users, of whom `bob` holds most blocks; a request of his waits."""
    script = Script(ScriptedSource())
    script.arrive("ann-1", num_prompt=40)
    script.arrive("bob-1", num_prompt=100)
    script.arrive("bob-2", num_prompt=100)
    script.arrive("bob-3", num_prompt=30)
    script.step(
        prefill={"ann-1": 40, "bob-1": 100, "bob-2": 100}, waits=[wait_reason("bob-3", "no_blocks")]
    )
    return script


def _names(app: SeqtopApp) -> list[str]:
    """The first two words of each row of the table."""
    lines = screen(app).splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r" (Request|By )", line))
    rows = [line[1:].split() for line in lines[first + 1 :]]
    return [row[0] for row in rows if row and re.match(r"[▸▾]?(ann|bob)", row[0])]


def test_the_user_who_takes_most_of_the_cache_is_first_after_two_keys() -> None:
    app = SeqtopApp(_script().source, clock=lambda: 0.0)
    with play(app, (120, 22)) as pilot:
        pilot.press("G", "enter")
        assert _names(app) == ["▸bob", "▸ann"]
        line = next(line for line in screen(app).splitlines() if "▸bob" in line)
        assert re.search(r"▸bob 3 +2● 1○ .*82% KV", line), line
        pilot.press("d")
        shown = " ".join(screen(app).split())
        assert "bob 3 requests ● 2 running ○ 1 waiting" in shown
        assert "All its requests together: 230 prompt and 2 output tokens; 0 preemptions" in shown
        pilot.press("d")
        pilot.press("enter")
        assert _names(app) == ["▾bob", "bob-1", "bob-2", "bob-3", "▸ann"]
        pilot.press("down", "z")  # on a member it folds the group
        assert _names(app) == ["▸bob", "▸ann"]
        pilot.press("Z")
        assert _names(app) == ["▾bob", "bob-1", "bob-2", "bob-3", "▾ann", "ann-1"]
        pilot.press("escape")
        assert _names(app) == ["ann-1", "bob-1", "bob-2", "bob-3"]


def test_figures_follow_what_the_engine_does() -> None:
    script = _script()
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    with play(app, (160, 20)) as pilot:
        pilot.press("G", "p", "r", "enter")  # by priority: all have the same
        assert "▸0 4" in screen(app)
        pilot.press("G", "n", "enter", "G", "slash", *"b(o)b", "enter")
        assert "▸o 3" in screen(app)
        assert "▸(none) 1" in screen(app)
        with app.ui.lock:
            script.arrive("bob-4")
        pilot.draw()
        assert "▸o 4" in screen(app)


def test_a_search_unfolds_the_group_of_what_it_finds() -> None:
    app = SeqtopApp(_script().source, clock=lambda: 0.0)
    with play(app, (120, 20)) as pilot:
        pilot.press("G", "enter", "backslash", *"ann-1", "enter")
        assert _names(app) == ["▸bob", "▾ann", "ann-1"]
        assert app.ui.selection is not None
        assert app.ui.selection[0].request_id == "ann-1"


def test_an_expression_that_is_no_key_says_why() -> None:
    app = SeqtopApp(_script().source, clock=lambda: 0.0)
    with play(app, (120, 20)) as pilot:
        pilot.press("G", "slash", "(", "enter")
        assert "the regular expression is invalid" in screen(app)
        pilot.press("escape")
        assert _names(app)[0] == "ann-1"
