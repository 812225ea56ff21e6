"""The cells of the table of engines."""

import pytest

from seqtop.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.fleet import cells
from tests.support.scripted import ScriptedSource


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
