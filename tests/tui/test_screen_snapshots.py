"""How the screens that show time look, against pictures that were looked at."""

from collections.abc import Callable

import pytest
from scripted import HOSTILE, ScriptedSource, scene
from textual.pilot import Pilot

from seqtop.state.history import History
from seqtop.tui.app import SCREENS, SeqtopApp

SIZES = [(80, 24), (160, 50)]
LOOKS = ["dark", "light", "no-colour"]
TIME_SCREENS = ["timeline", "steps"]


def recorded() -> SeqtopApp:
    source = ScriptedSource(history=History())
    app = SeqtopApp(source, clock=lambda: 0.0)
    source.listener = app.feed.poll
    scene(source, hostile=HOSTILE.replace("\ud800", ""))  # which the wire does not carry
    return app


def key_of(name: str) -> str:
    return str([each.NAME for each in SCREENS].index(name) + 1)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", TIME_SCREENS)
def test_screen(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    name: str,
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    app = recorded()

    async def turn(pilot: Pilot[int]) -> None:
        if look == "light":
            app.theme = "seqtop-light"
        await pilot.press("p", key_of(name))
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=turn)
