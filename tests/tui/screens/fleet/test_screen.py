"""Several engines in one app."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.state.filter import parse
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.fleet import cells
from seqtop.tui.screens.fleet.screen import FleetScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.steps.screen import StepsScreen
from seqtop.wire.messages import RequestArrived
from tests.support.piloting import play, screen, until
from tests.support.scripted import Script, ScriptedSource, scene


@pytest.fixture
def sources() -> list[ScriptedSource]:
    """A busy engine, one that has just begun, and one that nothing is known of."""
    busy, young, unknown = ScriptedSource(), ScriptedSource(), ScriptedSource()
    scene(busy)
    script = Script(young, engine_id="rank-1", incarnation="b2")
    script.arrive("first")
    script.step(prefill={"first": 40})
    unknown.connection.state = ConnectionState.CONNECTING
    unknown.connection.endpoint = "tcp://10.0.0.7:5557"
    return [busy, young, unknown]


@pytest.fixture
def fleet(sources: list[ScriptedSource]) -> SeqtopApp:
    return SeqtopApp(*sources, clock=lambda: 0.0)


def test_it_begins_with_all_of_them(fleet: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        assert isinstance(fleet.screen, FleetScreen)
        lines = screen(fleet).splitlines()
        assert "3 engines, 2 live" in lines[0]
        assert "F Fleet" in lines[1]
        for line, name, state in zip(
            lines[3:6],
            ("demo", "rank-1", "tcp://10.0.0.7"),
            ("LIVE", "LIVE", "CONNECTING"),
            strict=True,
        ):
            assert name in line
            assert state in line

    play(fleet, act, (120, 24))


def test_one_is_chosen_looked_at_and_left(fleet: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(fleet.screen, SequencesScreen))
        await pilot.pause()
        assert "rank-1" in screen(fleet)
        assert "first" in screen(fleet)
        await pilot.press("4")
        await until(pilot, lambda: isinstance(fleet.screen, StepsScreen))
        assert fleet.screen.ui is fleet.engines.all[1]
        await pilot.press("F", "up", "4")
        await until(pilot, lambda: fleet.screen.ui is fleet.engines.all[0])
        assert isinstance(fleet.screen, StepsScreen)
        await pilot.press("F")
        await until(pilot, lambda: isinstance(fleet.screen, FleetScreen))

    play(fleet, act, (120, 24))


def test_each_keeps_its_own_filter_pause_and_selection(fleet: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        first, second, _ = fleet.engines.all
        await pilot.press("1", "down", "down", "space")
        with first.lock:
            first.filter_by(parse("status:running"))
            chosen = first.selected
        await pilot.press("F", "down", "1")
        await until(pilot, lambda: fleet.ui is second)
        assert first.paused
        assert not second.paused
        assert second.view.filter.source == ""
        assert second.selected != chosen
        await pilot.press("F", "up", "1")
        await until(pilot, lambda: fleet.ui is first)
        assert first.selected == chosen
        assert "PAUSED" in screen(fleet)

    play(fleet, act, (120, 24))


def test_what_goes_on_elsewhere_is_seen(fleet: SeqtopApp, sources: list[ScriptedSource]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        def row() -> str:
            return screen(fleet).splitlines()[4]

        sources[1].apply(
            RequestArrived(request_id="second", arrival_time=0.0, seq_ids=[9], num_prompt_tokens=4)
        )
        await until(pilot, lambda: row().split()[3:5] == ["1", "1"])
        sources[1].connection.state = ConnectionState.LOST
        await until(pilot, lambda: "LOST" in row())

    play(fleet, act, (120, 24))


def test_nothing_is_done_to_an_engine_that_is_not_looked_at(
    fleet: SeqtopApp, sources: list[ScriptedSource]
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("x", "n", "space", "left", "p")
        await pilot.pause()
        assert isinstance(fleet.screen, FleetScreen)
        assert not fleet.ui.paused
        assert "Abort" not in screen(fleet)

    play(fleet, act, (120, 24))


@pytest.mark.parametrize("width", [80, 120])
def test_an_endpoint_keeps_its_port(width: int) -> None:
    ui = SeqtopApp(ScriptedSource(), clock=lambda: 0.0).ui
    for endpoint in ("tcp://127.0.0.1:5557", "tcp://a-node-of-a-cluster.example.org:5558"):
        ui.source.connection.endpoint = endpoint
        line = plain(cells.row(cells.arrange(width), ui))
        assert f"{endpoint[-12:]} " in line
        assert (endpoint in line) == (len(endpoint) <= 20)


@pytest.mark.parametrize("state", [ConnectionState.LOST, ConnectionState.STOPPED])
def test_what_no_longer_goes_on_has_no_rates(state: ConnectionState) -> None:
    ui = SeqtopApp(ScriptedSource(), clock=lambda: 0.0).ui
    ui._meter.rates = ui.rates._replace(steps=8.5, tokens_in=6.5, tokens_out=47.5)
    slots = cells.arrange(200)
    assert {"8.5", "6.5"} <= set(plain(cells.row(slots, ui)).split())
    ui.source.connection.state = state
    assert not {"8.5", "6.5", "47.5"} & set(plain(cells.row(slots, ui)).split())


def test_one_engine_is_no_fleet() -> None:
    app = SeqtopApp(ScriptedSource(), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("F")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert "Fleet" not in screen(app)

    play(app, act)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
def test_picture(
    fleet: SeqtopApp, snap_compare: Callable[..., bool], size: tuple[int, int]
) -> None:
    assert snap_compare(fleet, terminal_size=size)


def test_what_is_lost_is_in_no_sum(fleet: SeqtopApp, sources: list[ScriptedSource]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "2 live" in screen(fleet))
        before = sources[0].state.num_by_status[SequenceStatus.RUNNING]
        both = before + sources[1].state.num_by_status[SequenceStatus.RUNNING]
        await until(pilot, lambda: f"{both} running" in screen(fleet))
        sources[1].connect(ConnectionState.LOST)
        await until(pilot, lambda: f"1 live   ● {before} running" in screen(fleet))

    play(fleet, act)
