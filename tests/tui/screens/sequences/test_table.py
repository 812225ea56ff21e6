"""Moving through the table, selecting rows, and the rows that are drawn again."""

from collections import Counter
from collections.abc import Callable

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state.ordering import Sort
from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import Line, plain
from seqtop.tui.screens.sequences.table import Rows, Titles
from seqtop.wire.messages import Heartbeat, RequestFinished
from tests.support import settling
from tests.support.drawing import crowd, drawn
from tests.support.piloting import checked, inside, play, screen, selected, until, words
from tests.support.scripted import STEP_TIME, Script, ScriptedSource
from tests.support.simulated_engine import START


def finish(source: ScriptedSource, name: str) -> RequestFinished:
    metrics = source.state.requests[name].metrics
    metrics.finished_time = START + 0.5  # long before the others: to the very end of the list
    return RequestFinished(
        request_id=name,
        time=START + 0.5,
        status=SequenceStatus.FINISHED_STOPPED,
        metrics=metrics,
    )


MANY = 2_000
STEADY = ("request", "status", "computed", "out", "blocks")
"""Columns without times, which grow by themselves."""


def test_moving(app: SeqtopApp) -> None:
    with play(app, (100, 12)) as pilot:
        order = app.ui.view.page(0, 100)
        height = app.screen.query_one(Rows).size.height

        def row() -> int:
            return order.index(app.ui.cursor.seq_id)

        assert row() == 0
        for keys, expected in [
            (("down", "j"), 2),
            (("up",), 1),
            (("k",), 0),
            (("up",), 0),
            (("pagedown",), min(height - 1, len(order) - 1)),
            (("pageup",), 0),
            (("ctrl+f",), min(height - 1, len(order) - 1)),
            (("ctrl+b",), 0),
            (("end",), len(order) - 1),
            (("down",), len(order) - 1),
            (("home",), 0),
            (("end",), len(order) - 1),
            (("g",), 0),
        ]:
            pilot.press(*keys)
            assert row() == expected, keys
            top = app.screen.query_one(Rows).scroll_offset.y
            assert top <= row() < top + height


@pytest.mark.parametrize("panes", [(), ("enter",), ("l",)], ids=repr)
def test_the_selected_row_stays_in_sight_in_a_small_terminal(
    app: SeqtopApp, panes: tuple[str, ...]
) -> None:
    with play(app, (120, 40)) as pilot:
        pilot.press("end", *panes)
        pilot.resize_terminal(40, 12)
        until(pilot, lambda: "▌" in screen(app))


def test_follow(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (100, 12)) as pilot:
        rows = app.screen.query_one(Rows)
        name = selected(app)
        pilot.press("f")
        assert app.ui.cursor.is_followed
        source.apply(finish(source, name))
        pilot.draw()
        assert selected(app) == name
        index = app.ui.view.index(app.ui.cursor.seq_id)
        assert index is not None
        assert index > 8
        assert rows.scroll_offset.y <= index < rows.scroll_offset.y + rows.size.height
        pilot.press("f")
        assert not app.ui.cursor.is_followed


def test_a_row_not_followed_keeps_the_selection_but_not_the_view(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    with play(app, (100, 12)) as pilot:
        pilot.press("down", "up")
        name = selected(app)
        source.apply(finish(source, name))
        pilot.draw()
        assert selected(app) == name
        assert app.screen.query_one(Rows).scroll_offset.y == 0


def test_a_row_chosen_before_the_first_frame_is_in_sight(app: SeqtopApp) -> None:
    app.ui.cursor.pending = "req-7"
    app.ui.sort_by(Sort("request"))
    with play(app, (100, 12)):
        assert "▌req-7" in screen(app)
        assert app.screen.query_one(Rows).scroll_offset.y > 0


def test_a_move_through_time_keeps_the_selected_row_in_sight(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    with play(app, (100, 14)) as pilot:
        pilot.press("down", "up")
        name = selected(app)
        source.apply(finish(source, name))
        pilot.draw()
        assert f"▌{name}" not in screen(app)
        pilot.press("left", "right")
        assert f"▌{name}" in screen(app)


def test_until_somebody_chooses_the_first_row_is_selected(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    with play(app, (100, 12)) as pilot:
        name = selected(app)
        source.apply(finish(source, name))
        pilot.draw()
        assert selected(app) != name
        with app.ui.lock:
            assert app.ui.view.index(app.ui.cursor.seq_id) == 0


def test_mouse(app: SeqtopApp) -> None:
    with play(app, (100, 29)) as pilot:
        pilot.click(Rows, offset=(5, 2))
        assert selected(app) == "req-3"
        pilot.click(Rows, offset=(5, 18))  # below the last row
        assert selected(app) == "req-3"
        at = screen(app).splitlines()[5].index("Out") - 1
        pilot.click(Titles, offset=(at, 0))
        assert app.ui.view.sort == Sort("out", descending=True)
        pilot.click(Titles, offset=(at, 0))
        assert app.ui.view.sort == Sort("out")
        assert app.screen.query_one(Rows).cursor_row == 0, "one sorts to see the first row"
        app.ui.select(app.ui.state.requests["req-3"].seq_ids[0])
        pilot.press("d")
        pilot.click("DetailTabs", offset=(10, 0))
        assert "slots filled" in screen(app)


def test_a_pause_does_not_scroll_the_table(app: SeqtopApp) -> None:
    with play(app, (80, 12)) as pilot:
        rows = app.screen.query_one(Rows)
        rows.scroll_to(y=rows.max_scroll_y, animate=False)
        pilot.pause()
        top = rows.scroll_offset.y
        assert top > 0
        pilot.press("space")
        assert rows.scroll_offset.y == top


def test_found_words_are_highlighted(app: SeqtopApp) -> None:
    with play(app, (100, 36)) as pilot:
        pilot.press("backslash", *"eq-1", "enter")
        ink = app.screen.get_component_rich_style("style--match", partial=True)
        strips = settling.render(app)
        texts = [
            segment.text
            for strip in strips
            for segment in strip
            if segment.style and segment.style.bgcolor == ink.bgcolor and segment.style.underline
        ]
        assert texts == ["eq-1", "eq-1"]  # req-1 and req-10


def test_of_many_rows_those_in_sight_that_change_are_drawn(
    lines: Counter[LineView],
) -> None:
    script, app = crowd(MANY)
    app.ui.preferences.columns = STEADY
    with play(app, (120, 24)) as pilot:

        def num_drawn(act: Callable[..., object], *what: str) -> int:
            before = drawn(app, pilot, lines)
            act(*what)
            return drawn(app, pilot, lines)["Rows"] - before["Rows"]

        assert num_drawn(script.step) == 1, "of the one that runs"
        assert num_drawn(pilot.press, "down") == 2
        assert num_drawn(script.arrive, "late") == 0, "below those in sight"
        assert app.screen.query_one(Rows).virtual_size.height == MANY + 2
        pilot.press("end")
        assert num_drawn(script.step) == 0, "above those in sight"


@pytest.mark.parametrize("number", [100, 2_000])
def test_a_frame_in_which_all_changes_draws_what_is_in_sight(
    number: int, lines: Counter[LineView]
) -> None:
    script, app = crowd(number)
    with play(app, (120, 24)) as pilot:
        before = drawn(app, pilot, lines)
        for seq_id in list(script.source.state.sequences)[1:]:
            script.source.state.sequences[seq_id].num_computed_tokens += 1
        script.source.touch(set(script.source.state.sequences))
        after = drawn(app, pilot, lines)
        num_rows = app.screen.query_one(Rows).size.height
        assert after["Rows"] - before["Rows"] == num_rows - 1  # the first has not changed
        assert sum(after.values()) - sum(before.values()) <= num_rows + 8


def test_a_second_redraws_the_rows_that_wait_or_run_and_no_other(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.arrive("stopped")
    script.step(
        prefill={"runs": 40, "stopped": 40}, stop={"stopped": SequenceStatus.FINISHED_STOPPED}
    )
    script.arrive("waits-1")
    script.arrive("waits-2")
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 24)) as pilot:
        source.apply(Heartbeat(time=script.time + 5, step=0))
        before = drawn(app, pilot, lines)
        source.apply(Heartbeat(time=script.time + 7, step=0))
        after = drawn(app, pilot, lines)
        assert after["Rows"] - before["Rows"] == 3


def test_findings_about_a_sequence_are_in_sight() -> None:
    """In a column, in the detail, and in the header; each as of the moment on display."""
    script = Script(ScriptedSource())
    script.arrive("huge", num_prompt=5_000)
    script.arrive("thrashed")
    for _ in range(6):
        script.step(prefill={"thrashed": 40})
        script.step(preempt={"thrashed": "thrashed"}, decode=[])
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    app.ui.cursor.pending = "thrashed"
    with play(app, (120, 40)) as pilot:
        assert "Warn" not in screen(app)
        app.start_checking()
        checked(app, pilot)
        checker = app.ui.checks.checker
        assert {located.finding.request_id for located in checker.findings()} == {
            "huge",
            "thrashed",
        }
        assert (checker.num_errors, checker.num_warnings) == (1, 1)
        text = words(app)
        assert "checks: 1 error, 1 warning" in text
        assert "Warn Request" in text
        row = next(line for line in inside(screen(app).splitlines()) if "huge" in line)
        assert row.split()[0] == "1"
        assert "Warning thrash at step 7: " in text
        pilot.press("0")
        checked(app, pilot)
        text = words(app)
        assert "Warning thrash" not in text, "it is not so yet"
        assert "Warn Request" in text


def test_a_click_on_a_title_beside_the_column_of_findings() -> None:
    script = Script(ScriptedSource())
    script.arrive("huge", num_prompt=5_000)
    for _ in range(4):
        script.step(decode=[])
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    with play(app, (120, 40)) as pilot:
        app.start_checking()
        checked(app, pilot)
        line = next(text for text in screen(app).splitlines() if "Warn Request" in text)
        pilot.click(Titles, offset=(line.index("Warn") - 1, 0))
        assert app.ui.view.sort.key == ""
        pilot.click(Titles, offset=(line.index("Status"), 0))
        assert app.ui.view.sort.key == "status"


def test_a_decoding_sequence_has_its_pace_and_outliers_have_a_style() -> None:
    source = ScriptedSource()
    script = Script(source)
    app = SeqtopApp(source, clock=lambda: 0.0)
    script.arrive("first")
    script.step(prefill={"first": 40})
    for _ in range(30):
        script.step()
    for number in range(25):
        script.arrive(f"short-{number}")
        script.step(prefill={f"short-{number}": 40})
    script.arrive("slow")
    script.time += 5
    script.step(prefill={"slow": 40})
    with play(app, (120, 50)) as pilot:
        rows = app.screen.query_one(Rows)

        def row_of(request_id: str) -> Line:
            (seq_id,) = source.state.requests[request_id].seq_ids
            return rows.line(seq_id)

        assert plain(row_of("first")).count("⣸") == 1, "the newest token took five seconds"
        assert "⣀" in plain(row_of("first"))
        assert "⣀" not in plain(row_of("slow")), "one token has no pace"
        figures = {text.strip(): style for text, style in row_of("slow")}
        assert figures[fmt.seconds(5 + STEP_TIME)] == "very-high"
        assert not {"high", "very-high"} & set(dict(row_of("short-1")).values())
        pilot.press("space")
        assert "⣀" in plain(row_of("first"))


def test_a_title_explains_its_column(app: SeqtopApp) -> None:
    with play(app, (100, 30)) as pilot:
        titles = app.screen.query_one(Titles)
        pilot.hover(Titles, offset=(3, 0))
        assert titles.tooltip == "Request: request id"
        pilot.hover(Titles, offset=(screen(app).splitlines()[5].index("Pre") - 1, 0))
        assert titles.tooltip == "Pre: preemptions"


def test_rows_show_in_what_their_names_differ() -> None:
    source = ScriptedSource()
    script = Script(source)
    for number in range(3):
        script.arrive(f"benchmark-serving-request-of-one-user-{number}")
    script.step(prefill={"benchmark-serving-request-of-one-user-0": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        for number in range(3):
            assert f"…{number} " in screen(app)
        script.arrive("another")
        script.step()
        until(pilot, lambda: "another" in screen(app))
        assert "…0 " not in screen(app), "there is no head that all share"
