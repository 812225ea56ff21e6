"""Several engines in one app."""

from typing import Any

from seqtop.sequence import SequenceStatus
from seqtop.state.filter import parse
from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.fleet.screen import FleetScreen
from seqtop.tui.screens.fleet.table import FleetRows
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.steps.screen import StepsScreen
from tests.support.piloting import play, screen, until
from tests.support.scripted import ScriptedSource
from tests.support.snapshots import Snapshots


def test_it_begins_with_all_of_them(fleet: SeqtopApp) -> None:
    with play(fleet, (120, 24)):
        assert isinstance(fleet.screen, FleetScreen)
        lines = screen(fleet).splitlines()
        assert "3 engines, 2 live" in lines[0]
        assert "F Fleet" in lines[1]
        for line, name, state in zip(
            lines[4:7],
            ("demo", "rank-1", "tcp://10.0.0.7"),
            ("LIVE", "LIVE", "CONNECTING"),
            strict=True,
        ):
            assert name in line
            assert state in line


def test_one_is_chosen_looked_at_and_left(fleet: SeqtopApp) -> None:
    with play(fleet, (120, 24)) as pilot:
        pilot.press("down", "enter")
        until(pilot, lambda: isinstance(fleet.screen, SequencesScreen))
        pilot.pause()
        assert "rank-1" in screen(fleet)
        assert "first" in screen(fleet)
        pilot.press("4")
        until(pilot, lambda: isinstance(fleet.screen, StepsScreen))
        steps: Any = fleet.screen
        assert steps.ui is fleet.engines.all[1]
        pilot.press("F", "up", "4")
        until(pilot, lambda: fleet.ui is fleet.engines.all[0])
        steps = fleet.screen
        assert isinstance(steps, StepsScreen)
        assert steps.ui is fleet.engines.all[0]
        pilot.press("F")
        until(pilot, lambda: isinstance(fleet.screen, FleetScreen))


def test_each_keeps_its_own_filter_pause_and_selection(fleet: SeqtopApp) -> None:
    with play(fleet, (120, 24)) as pilot:
        first, second, _ = fleet.engines.all
        pilot.press("1", "down", "down", "space")
        with first.lock:
            first.filter_by(parse("status:running"))
            chosen = first.cursor.seq_id
        pilot.press("F", "down", "1")
        until(pilot, lambda: fleet.ui is second)
        assert first.paused
        assert not second.paused
        assert second.view.filter.source == ""
        assert second.cursor.seq_id != chosen
        pilot.press("F", "up", "1")
        until(pilot, lambda: fleet.ui is first)
        assert first.cursor.seq_id == chosen
        assert "PAUSED" in screen(fleet)


def test_nothing_is_done_to_an_engine_that_is_not_looked_at(
    fleet: SeqtopApp, sources: list[ScriptedSource]
) -> None:
    with play(fleet, (120, 24)) as pilot:
        pilot.press("x", "n", "space", "left", "p")
        assert isinstance(fleet.screen, FleetScreen)
        assert not fleet.ui.paused
        assert "Abort" not in screen(fleet)


def test_one_engine_is_no_fleet() -> None:
    app = SeqtopApp(ScriptedSource(), clock=lambda: 0.0)
    with play(app) as pilot:
        pilot.press("F")
        assert isinstance(app.screen, SequencesScreen)
        assert "There is one engine" in screen(app)


def test_picture(fleet: SeqtopApp, snap_compare: Snapshots) -> None:
    assert snap_compare(fleet)


def test_a_lost_engine_is_in_no_sum(fleet: SeqtopApp, sources: list[ScriptedSource]) -> None:
    with play(fleet) as pilot:
        until(pilot, lambda: "2 live" in screen(fleet))
        before = sources[0].state.num_by_status[SequenceStatus.RUNNING]
        both = before + sources[1].state.num_by_status[SequenceStatus.RUNNING]
        until(pilot, lambda: f"{both} running" in screen(fleet))
        sources[1].connect(ConnectionState.LOST)
        until(pilot, lambda: f"1 live   ● {before} running" in screen(fleet))
        sources[0].connect(ConnectionState.LOST)
        until(pilot, lambda: "0 live" in screen(fleet))
        assert "running" not in screen(fleet).splitlines()[0]


def test_engines_are_sorted(fleet: SeqtopApp) -> None:
    with play(fleet, (160, 24)) as pilot:
        rows = fleet.screen.query_one(FleetRows)
        given = list(range(len(fleet.engines)))
        pilot.press("s")
        assert "sorted as given" in screen(fleet)
        assert list(rows.page(0, 10)) == given
        pilot.press("s")
        assert "sorted by waiting sequences" in screen(fleet)
        waiting = [
            ui.source.state.num_by_status[SequenceStatus.WAITING] for ui in fleet.engines.all
        ]
        assert [waiting[row] for row in rows.page(0, 10)] == sorted(waiting, reverse=True)
        pilot.press(*["s", "f6"] * 3, "s")
        assert "sorted as given" in screen(fleet)
        assert list(rows.page(0, 10)) == given


def test_engines_are_filtered(fleet: SeqtopApp) -> None:
    with play(fleet, (120, 24)) as pilot:
        rows = fleet.screen.query_one(FleetRows)
        pilot.press("slash", *"CONNECTING")
        until(pilot, lambda: "1 of 3" in screen(fleet))
        assert list(rows.page(0, 10)) == [2]
        pilot.press("enter", "down")
        assert fleet.engines.shown_index == 2
        pilot.press("f4", *" kv>>")
        until(pilot, lambda: "Not applied" in screen(fleet))
        pilot.press("escape")
        until(pilot, lambda: list(rows.page(0, 10)) == [0, 1, 2])
        pilot.press("f1", "slash", *"share of the KV pool")
        until(pilot, lambda: "  kv  " in screen(fleet))
        assert "status:" not in screen(fleet)  # the notes are on this screen's filter


def test_the_engine_under_the_cursor_is_shown_below(fleet: SeqtopApp) -> None:
    with play(fleet, (120, 40)) as pilot:
        assert "─ demo · ipc:" in screen(fleet)
        assert "p50 each second" in screen(fleet)
        pilot.press("down")
        until(pilot, lambda: "─ rank-1 · ipc:" in screen(fleet))
