"""The cells of the table of engines."""

import math

import pytest

from seqtop.text import format as fmt
from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome import header
from seqtop.tui.chrome.base_header import BADGES
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.fleet import cells
from seqtop.wire.messages import EngineSummary
from tests.support.scripted import ScriptedSource, scene


@pytest.mark.parametrize("width", [80, 120])
def test_an_endpoint_keeps_its_port(width: int) -> None:
    ui = SeqtopApp(ScriptedSource(), clock=lambda: 0.0).ui
    for endpoint in ("tcp://127.0.0.1:5557", "tcp://a-node-of-a-cluster.example.org:5558"):
        ui.source.connection.endpoint = endpoint
        line = plain(cells.row(cells.arrange(width), ui))
        assert f"{endpoint[-12:]} " in line
        assert (endpoint in line) == (len(endpoint) <= 20)


def test_the_name_of_a_pod_keeps_its_end() -> None:
    source = ScriptedSource()
    source.name = "llmstack-mistral-deployment-vllm-7d9c5b6f8-x2x4z"
    ui = SeqtopApp(source, clock=lambda: 0.0).ui
    source.after_event = ui.update
    scene(source)
    assert "…nt-vllm-7d9c5b6f8-x2x4z" in plain(header.identity(ui, 120, "seqtop"))
    assert "7d9c5b6f8-x2x4z  " in plain(cells.row(cells.arrange(120), ui))


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


def test_the_row_of_an_engine_that_sends_summaries_is_made_of_them() -> None:
    source = ScriptedSource()
    ui = SeqtopApp(source, clock=lambda: 0.0).ui
    for second in range(3):
        source.summary = EngineSummary(
            time=float(second),
            engine_id="far",
            model="large",
            num_running=7,
            num_waiting=31,
            num_gpu_blocks=100,
            num_used_blocks=10 * second,
            oldest_wait=12.0,
            ttft_p99=3.5,
            generated_rate=100.0 * second,
            limit="KV blocks: 80% of all waiting; r1 holds 90 of 100",
            is_limited=True,
        )
        ui.update_summary()
        ui.update_summary()
    assert len(ui.summaries) == 3, "each of them once"
    words = plain(cells.row(cells.arrange(250), ui)).split()
    assert {"far", "large", "7", "31", "12.0", "20%", "200", "3.50"} <= set(words)
    assert "KV blocks  " in plain(cells.row(cells.arrange(250), ui))
    hostile = EngineSummary(
        time=math.nan,
        engine_id="\x1b[2J",
        model="[bold]",
        num_running=-5,
        num_used_blocks=-(2**60),
        num_gpu_blocks=2**60,
        step=2**62,
        oldest_wait=math.inf,
        ttft_p50=-math.inf,
        itl_p99=math.nan,
        generated_rate=math.inf,
        limit="\x1b]52;c;cm0=\x07",
    )
    source.summary = hostile
    ui.update_summary()
    assert "\x1b" not in plain(cells.row(cells.arrange(250), ui))
    assert all(order is None or order(ui) == order(ui) for order in cells.ORDERS.values())


def test_a_restarted_engine_begins_its_history_again() -> None:
    source = ScriptedSource()
    ui = SeqtopApp(source, clock=lambda: 0.0).ui
    for time in (5.0, 6.0, 1.0):
        source.summary = EngineSummary(time=time, engine_id="far", model="large")
        ui.update_summary()
    assert [own.time for own in ui.summaries] == [1.0]
