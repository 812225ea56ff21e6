"""How every screen looks, small and large, dark, light and without colour, in one recorded run.

The pictures were looked at. More of the block map and the checks is in `test_snapshots.py`.
"""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.history.memory_store import MemoryStore
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import checked
from tests.support.scripted import HOSTILE, ScriptedSource, scene

SIZES = [(80, 24), (160, 50)]
LOOKS = ["dark", "light", "no-colour"]
KEYS = {
    "sequences": ["enter", "down", "down"],  # with its detail
    "blocks": ["down", "2"],
    "timeline": ["p", "3"],
    "steps": ["p", "4"],
    "checks": ["5", "down"],
    "help": ["question_mark"],
    "fleet": ["F", "down"],
}


def recorded(*, num_engines: int = 1) -> SeqtopApp:
    sources = [ScriptedSource(history=MemoryStore()) for _ in range(num_engines)]
    app = SeqtopApp(*sources, clock=lambda: 0.0)
    for number, (source, ui) in enumerate(zip(sources, app.engines.all, strict=True)):
        source.after_event = ui.update
        name = f"rank-{number}" if num_engines > 1 else "demo"
        scene(source, hostile=HOSTILE.replace("\ud800", ""), engine_id=name)  # wire carries none
    if num_engines > 1:
        sources[-1].connect(ConnectionState.LOST, "No word from the engine.")
    return app


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", KEYS)
def test_screen(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    name: str,
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    app = recorded(num_engines=3 if name == "fleet" else 1)

    async def turn(pilot: Pilot[int]) -> None:
        if look == "light":
            app.theme = "seqtop-light"
        first, *others = KEYS[name]
        await pilot.press(first)
        if name == "checks":  # before that there is nothing to go through
            await checked(app, pilot)
        await pilot.press(*others)
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=turn)
