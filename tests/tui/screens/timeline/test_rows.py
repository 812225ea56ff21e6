"""The rows of the timeline, and the work of drawing them."""

from collections import Counter

from seqtop.state import Span
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.timeline.rows import TimeAxis, legend
from seqtop.wire.messages import Heartbeat
from tests.support.piloting import play, screen
from tests.support.scripted import STEP_TIME, Script, ScriptedSource
from tests.support.timeline_screen import line_of, opened

MANY = 10_000


def test_the_moment_on_show_is_marked_and_kept_in_sight(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        assert rows.position_column is None
        pilot.press("left", "left")
        assert rows.position_column is not None
        assert "▼" in screen(app)
        assert line_of(app, "req-1")[rows.layout_columns.name + 4 + rows.position_column] == "│"
        pilot.press(*["plus", "equals_sign"] * 2, "0")
        assert "No sequence had arrived yet at this moment." in screen(app)
        pilot.press("right_curly_bracket")
        assert rows.position_column is not None
        assert "╷" in screen(app)


def test_drawing_costs_what_is_in_sight(lines: Counter[LineView]) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    for index in range(MANY):
        script.arrive(f"waits-{index}")
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        rows = opened(app, pilot)
        axis = app.screen.query_one(TimeAxis)

        def cost(*keys: str) -> int:
            before = lines[rows]
            pilot.press(*keys)
            pilot.draw()
            pilot.pause()
            return lines[rows] - before

        assert cost() == 0
        assert cost("down") == 2
        assert cost("plus") <= 2 * rows.size.height
        assert cost("G") <= 2 * rows.size.height
        cost("g", "a")
        script.time = source.state.time - 2 * STEP_TIME  # so that no clock ticks
        drawn = lines[axis]
        script.step()
        assert cost() <= 1
        assert lines[axis] == drawn


def test_a_request_with_very_many_spans_is_drawn_once_a_cell() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("long")
    script.step(prefill={"long": 40})
    request = source.state.requests["long"]
    begin = source.state.time
    request.spans += [
        Span("prefill" if at % 3 else "preempted", begin + at / 1e3, begin + (at + 1) / 1e3)
        for at in range(20_000)
    ]  # fmt: skip
    source.apply(Heartbeat(time=begin + 20, step=0))
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (120, 30)) as pilot:
        opened(app, pilot)
        assert "↺↺↺" in line_of(app, "long")  # every cell holds several
        pilot.press(*["plus"] * 11)
        assert {"█", "↺"} <= set(line_of(app, "long"))


def test_a_long_name_keeps_the_number_at_its_end() -> None:
    source = ScriptedSource()
    script = Script(source)
    for number in (1, 2):
        script.arrive(f"cmpl-12_prompt-of-a-batch-{number}")
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        opened(app, pilot)
        lines = [line for line in screen(app).splitlines() if "cmpl-12" in line]
        assert [line.split("…")[1].split()[0] for line in lines] == ["1", "2"]


def test_the_legend_names_the_signs_of_ends_before_rare_ones() -> None:
    assert plain(legend(76)).endswith("↺ preemption  ┤ length  ✓ stop")
    for name in ("▚ swapped", "⇄ swap", "┤ length", "✓ stop", "✗ abort", "⊘ ignored"):
        assert name in plain(legend(196))
