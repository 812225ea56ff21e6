"""Snapshots of the panes: search, latencies, objectives and tokens."""

import pytest

from seqtop.tui.app import SeqtopApp
from seqtop.tui.settings import Settings
from tests.support.scripted import ScriptedSource, scene
from tests.support.snapshots import COLUMNS, Snapshots


def recorded() -> SeqtopApp:
    """An app that has watched the scene, with objectives that some have missed."""
    source = ScriptedSource()
    settings = Settings(columns=COLUMNS, slo={"ttft": 0.1, "itl": 0.06})
    app = SeqtopApp(source, clock=lambda: 0.0, settings=settings)
    source.after_event = app.ui.update
    scene(source)
    app.ui.latencies.take_alerts()
    return app


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
def test_search_and_latencies(snap_compare: Snapshots, size: tuple[int, int]) -> None:
    keys = ["l", "backslash", *"pair", "enter", "m"]
    assert snap_compare(recorded(), terminal_size=size, press=keys)


@pytest.mark.parametrize(
    ("name", "size", "keys"),
    [
        ("copy", (80, 24), ["y"]),
        ("tokens", (80, 24), ["enter", *["o"] * 3]),
        ("raw", (160, 46), ["O"]),
        ("folded", (40, 10), ["Z"]),
    ],
)
def test_parts(snap_compare: Snapshots, name: str, size: tuple[int, int], keys: list[str]) -> None:
    assert snap_compare(recorded(), terminal_size=size, press=keys)
