"""The app for KV-cache events: what it shows, where its keys lead, how it looks."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from tests.support.kv_scene import ScriptedKvSource, app_of


@pytest.mark.parametrize("look", ["dark", "light", "no-colour"])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", ["blocks", "trees"])
def test_screen(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    source: ScriptedKvSource,
    name: str,
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    if name == "trees":
        source.cache.mark_gap("3 messages before number 41 missing")
        source.connection.num_missed = 3
    app = app_of(source, decode=lambda ids: " ".join(f"w{each}" for each in ids))

    async def turn(pilot: Pilot[int]) -> None:
        if look == "light":
            app.theme = "seqtop-light"
        if name == "blocks":
            await pilot.press(*"]" * 11)
        else:
            await pilot.press("2")
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=turn)
