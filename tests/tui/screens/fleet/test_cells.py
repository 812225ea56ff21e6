"""The cells of the table of engines."""

import pytest

from seqtop.text import format as fmt
from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.base_header import BADGES
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.fleet import cells
from tests.support.scripted import ScriptedSource, scene


@pytest.mark.parametrize("width", [80, 120])
def test_an_endpoint_keeps_its_port(width: int) -> None:
    ui = SeqtopApp(ScriptedSource(), clock=lambda: 0.0).ui
    for endpoint in ("tcp://127.0.0.1:5557", "tcp://a-node-of-a-cluster.example.org:5558"):
        ui.source.connection.endpoint = endpoint
        line = plain(cells.row(cells.arrange(width), ui))
        assert f"{endpoint[-12:]} " in line
        assert (endpoint in line) == (len(endpoint) <= 20)


@pytest.mark.parametrize("state", [ConnectionState.LOST, ConnectionState.STOPPED])
def test_an_engine_that_has_ended_has_no_rates(state: ConnectionState) -> None:
    source = ScriptedSource()
    ui = SeqtopApp(source, clock=lambda: 0.0).ui
    source.after_event = ui.update
    scene(source)
    ui.update_summary()
    figures = ui.step_series.last_second(ui.state.time)
    slots = cells.arrange(200)
    shown = {fmt.rate(figures.rate("steps")), fmt.rate(figures.rate("prefill"))}
    assert shown <= set(plain(cells.row(slots, ui)).split())
    ui.source.connection.state = state
    line = cells.row(slots, ui)
    assert not shown & set(plain(line).split())
    lively = {style for text, style in line if text.strip() and style not in {"dim", "track"}}
    assert lively == {"strong", BADGES[state][1]}
