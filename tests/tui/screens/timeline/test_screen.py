"""The timeline of all requests: its keys, and what it draws and looks at."""

from typing import Any

from seqtop.sequence import SequenceStatus
from seqtop.state.filter import parse
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.settings import Settings
from tests.support.piloting import notices, play, selected, words
from tests.support.scripted import Script, ScriptedSource
from tests.support.timeline_screen import line_of, opened


def test_rows_are_those_of_the_table_and_the_selection_carries_over(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        pilot.press("down", "down")
        rows = opened(app, pilot)
        assert selected(app) == "req-3"
        assert rows.page(0, 100) == app.ui.view.page(0, 100)
        assert "░█" in line_of(app, "req-2")
        assert "↺▒" in line_of(app, "req-7")
        assert "▆✓" in line_of(app, "done-1")
        pilot.press("j", "j", "k", "enter")
        assert isinstance(app.screen, SequencesScreen)
        assert selected(app) == "req-4"


def test_order_and_filter(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        pilot.press("s")
        state = app.ui.state
        by_arrival = [key for request in state.requests.values() for key in request.seq_ids]
        assert rows.page(0, 100) == by_arrival
        with app.ui.lock:
            app.ui.filter_by(parse("status:waiting"))
        timeline: Any = app.screen
        timeline.show_all()
        assert {state.sequences[key].request_id for key in rows.page(0, 100)} == {
            "req-7", "req-8", "req-9", "req-10", "chat-b7f39a2c-11",
        }  # fmt: skip
        pilot.press("s")
        assert rows.page(0, 100) == app.ui.view.page(0, 100)


def test_to_the_preemptions_of_the_selected_request(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        opened(app, pilot)
        pilot.press("o")
        assert notices(app) == ["No preemption of req-1 before this moment in the history."]
        pilot.press(*["down"] * 8)
        assert selected(app) == "req-7"
        pilot.press("o")
        assert app.ui.state.step == 34
        assert "Preempted here: req-7 (79 tokens lost, for " in words(app)
        pilot.press("left", "O")
        assert app.ui.state.step == 34
        assert selected(app) == "req-7"
        pilot.press("L", "home")
        assert selected(app) != "req-7"
        pilot.press("p")
        assert selected(app) == "req-7", "the preemption of any request selects it"


def test_it_opens_in_the_order_of_arrival_if_the_table_is_sorted(source: ScriptedSource) -> None:
    app = SeqtopApp(source, clock=lambda: 0.0, settings=Settings(sort="-queue"))
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        state = app.ui.state
        by_arrival = [key for request in state.requests.values() for key in request.seq_ids]
        assert rows.page(0, 100) == by_arrival


def test_it_opens_with_the_first_request_of_its_window_at_the_top() -> None:
    script = Script(ScriptedSource())
    for number in range(20):
        script.arrive(f"early-{number}")
        script.step(
            prefill={f"early-{number}": 40},
            stop={f"early-{number}": SequenceStatus.FINISHED_STOPPED},
        )
    script.time += 9_000
    script.arrive("waits")
    for number in range(20):
        script.arrive(f"late-{number}")
        script.step(prefill={f"late-{number}": 40})
    app = SeqtopApp(script.source, clock=lambda: 0.0, settings=Settings(sort="-queue"))
    with play(app, (100, 24)) as pilot:
        rows = opened(app, pilot)
        (waiting,) = script.source.state.requests["waits"].seq_ids
        assert rows.page(rows.scroll_offset.y, rows.scroll_offset.y + 1) == [waiting]


def test_the_window_goes_to_the_selected_bar_and_back_to_the_present() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("early")
    script.step(prefill={"early": 40}, stop={"early": SequenceStatus.FINISHED_STOPPED})
    script.time += 600
    script.arrive("late")
    script.step(prefill={"late": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        present = rows.window
        assert not set("░█▆") & set(line_of(app, "early"))
        pilot.press("end")
        assert selected(app) == "early"
        assert set("░█▆") & set(line_of(app, "early"))
        pilot.press("home")
        assert rows.window == present
        pilot.press("e")
        assert rows.window.column(app.ui.state.time) is not None
        assert rows.window.end < present.start
        pilot.press("L")
        assert rows.window == present


def test_keys_of_the_table_say_where_they_work(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        opened(app, pilot)
        for key in ("slash", "f4"):
            pilot.press(key)
            assert "press 1, then / filters" in notices(app)[-1]
        for key in ("c", "r"):
            app.clear_notifications()
            pilot.press(key)
            assert "about the table of sequences" in notices(app)[-1]
        with app.ui.lock:
            app.ui.filter_by(parse("nothing-has-this"))
        pilot.press("s", "f6")
        assert "No sequence matches nothing-has-this" in words(app)
        assert "Press 1: there Esc clears the filter" in words(app)
        assert len(notices(app)) == 1, "a notice takes the place of the one before"
