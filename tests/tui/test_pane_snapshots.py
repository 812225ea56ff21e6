"""Snapshots of the panes: search, latencies, objectives, tokens and columns."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from seqtop.history.memory_store import MemoryStore
from seqtop.tui.app import SeqtopApp
from seqtop.tui.settings import Settings
from tests.support.scripted import HOSTILE, ScriptedSource, scene

SIZES = [(80, 24), (160, 50)]
LOOKS = ["dark", "light", "no-colour"]


def recorded() -> SeqtopApp:
    """An app that has watched the scene, with objectives that some have missed."""
    source = ScriptedSource(history=MemoryStore())
    settings = Settings(slo={"ttft": 0.1, "itl": 0.06})
    app = SeqtopApp(source, clock=lambda: 0.0, settings=settings)
    source.after_event = app.ui.update
    scene(source, hostile=HOSTILE.replace("\ud800", ""))  # which the wire does not carry
    app.ui.latencies.take_alerts()
    return app


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_search_and_latencies(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    app = recorded()

    async def turn(pilot: Pilot[int]) -> None:
        if look == "light":
            app.theme = "seqtop-light"
        await pilot.press("l", "backslash", *"pair", "enter", "m")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=turn)


@pytest.mark.parametrize(
    ("name", "size", "keys"),
    [
        ("columns", (80, 24), ["c"]),
        ("copy", (80, 24), ["y"]),
        ("tokens", (80, 24), ["enter", *["right_square_bracket"] * 3]),
        ("raw", (160, 50), ["left_square_bracket"]),
        ("folded", (40, 10), ["Z"]),
    ],
)
def test_parts(
    snap_compare: Callable[..., bool], name: str, size: tuple[int, int], keys: list[str]
) -> None:
    assert snap_compare(recorded(), terminal_size=size, press=keys)
