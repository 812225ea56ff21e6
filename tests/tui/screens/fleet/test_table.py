"""The table of engines is drawn again when one of them changes."""

import pytest

from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.fleet.table import FleetRows
from seqtop.wire.messages import Heartbeat, RequestArrived
from tests.support.piloting import inside, play, screen, until
from tests.support.scripted import Script, ScriptedSource


def test_changes_of_other_engines_are_seen(fleet: SeqtopApp, sources: list[ScriptedSource]) -> None:
    with play(fleet, (120, 24)) as pilot:

        def row() -> str:
            return next(line for line in inside(screen(fleet).splitlines()) if "rank-1" in line)

        sources[1].apply(
            RequestArrived(request_id="second", arrival_time=0.0, seq_ids=[9], num_prompt_tokens=4)
        )
        until(pilot, lambda: row().split()[3:5] == ["1", "1"])
        sources[1].connection.state = ConnectionState.LOST
        until(pilot, lambda: "LOST" in row())


@pytest.mark.parametrize("num_waiting", [0, 2])
def test_the_engine_whose_requests_wait_is_first_and_marked(num_waiting: int) -> None:
    """Its latencies over the last minute are the best of all: they leave out who waits."""
    sources = [ScriptedSource() for _ in range(5)]
    for number, source in enumerate(sources):
        script = Script(source, engine_id=f"rank-{number}", incarnation=f"i{number}")
        script.arrive("first")
        script.step(prefill={"first": 40})
    sources[1].connection.state = ConnectionState.LOST
    sick = sources[3]
    for number in range(num_waiting):
        sick.apply(
            RequestArrived(
                request_id=f"waits-{number}",
                arrival_time=sick.state.time,
                seq_ids=[10 + number],
                num_prompt_tokens=4,
            )
        )
    fleet = SeqtopApp(*sources, clock=lambda: 0.0)
    with play(fleet, (120, 24)) as pilot:
        rows = fleet.screen.query_one(FleetRows)
        assert list(rows.page(0, 9)) == [1, 0, 2, 3, 4], "a lost engine first, while nothing waits"
        sick.apply(Heartbeat(time=sick.state.time + 9.0, step=0))
        until(pilot, lambda: list(rows.page(0, 9)) == [3, 1, 0, 2, 4])
        marked = [
            (key, text.strip())
            for key in range(5)
            for text, style in rows.line(key)
            if style == "very-high"
        ]
        assert marked == [(3, "9.00 s")]


def test_the_cursor_is_on_the_engine_that_is_shown_if_it_is_listed(fleet: SeqtopApp) -> None:
    with play(fleet, (120, 24)) as pilot:
        rows = fleet.screen.query_one(FleetRows)
        assert (rows.num_rows, rows.cursor_row) == (3, 0)
        pilot.click(FleetRows, offset=(5, 2))
        assert fleet.engines.shown_index == 2
        assert (rows.cursor_row, rows.is_selected(2), rows.is_selected(0)) == (2, True, False)
        pilot.pause()
        assert "─ tcp://10.0.0.7:5557" in screen(fleet)
        lines = inside(screen(fleet).splitlines())[4:7]
        assert [line.startswith("▌") for line in lines] == [False, False, True]
        rows.filter = lambda ui: ui is not fleet.engines.all[2]
        rows.sort()
        assert (rows.num_rows, rows.cursor_row) == (2, None)
        assert [list(rows.page(0, 9)), list(rows.page(1, 2))] == [[0, 1], [1]]
        pilot.press("down")
        assert fleet.engines.shown_index == 0


def test_the_cursor_stays_in_sight(sources: list[ScriptedSource]) -> None:
    fleet = SeqtopApp(*sources * 10, clock=lambda: 0.0)
    with play(fleet, (120, 16)) as pilot:
        rows = fleet.screen.query_one(FleetRows)
        pilot.press("G")
        assert fleet.engines.shown_index == 29
        assert rows.visible_keys()[-1] == 29
        pilot.press("g")
        assert rows.visible_keys()[0] == 0


def test_engines_of_each_model_are_below_a_line_that_names_an_imbalance() -> None:
    sources = [ScriptedSource() for _ in range(5)]
    models = ["large", "small", "large", "large", "small"]
    roles = ["", "", "", "kv_producer", ""]
    for number, (source, model, role) in enumerate(zip(sources, models, roles, strict=True)):
        script = Script(
            source,
            engine_id=f"e{number}",
            incarnation=f"i{number}",
            model=model,
            max_num_seqs=1,
            scheduler_settings={"kv_role": role} if role else {},
        )
        if number == 2:
            script.arrive("first")
            script.step(prefill={"first": 40})
    for seq_id in (10, 11, 12):
        sources[2].apply(
            RequestArrived(
                request_id=f"r{seq_id}",
                arrival_time=sources[2].state.time,
                seq_ids=[seq_id],
                num_prompt_tokens=4,
            )
        )
    fleet = SeqtopApp(*sources, clock=lambda: 0.0)
    with play(fleet, (120, 24)) as pilot:
        rows = fleet.screen.query_one(FleetRows)
        assert list(rows.page(0, 9)) == [-1, 0, 2, -2, 1, 4, -3, 3]
        assert rows.num_engines == 5
        lines = [plain(rows.line(key)) for key in (-1, -2, -3)]
        assert lines[0].startswith("large  2 engines, 2 live  ● 1 running  ○ 3 waiting  e2 (3")
        assert "is full beside e0" in lines[0]
        assert lines[1] == "small  2 engines, 2 live  ● 0 running  ○ 0 waiting"
        assert lines[2].startswith("large kv_producer  1 engine, ")
        shown = []
        for key in ("down", "down", "down", "down", "down", "up", "up", "up", "up", "up"):
            pilot.press(key)
            shown.append(fleet.engines.shown_index)
        assert shown == [2, 1, 4, 3, 3, 4, 1, 2, 0, 0], "the cursor is on engines alone"
        pilot.click(FleetRows, offset=(5, 3))
        assert fleet.engines.shown_index == 0
