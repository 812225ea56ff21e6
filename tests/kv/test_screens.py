"""The app for KV-cache events: what it shows, where its keys lead, how it looks."""

from functools import partial

import pytest

from seqtop.kv.app import KvApp
from tests.support.kv_scene import ScriptedKvSource, app_of
from tests.support.piloting import Pilot
from tests.support.snapshots import Snapshots, same_text_in_light_colours

KEYS = {"blocks": [*"]" * 11], "trees": ["2"]}


def recorded(source: ScriptedKvSource, name: str) -> KvApp:
    if name == "trees":
        source.cache.mark_gap("3 messages before number 41 missing")
        source.connection.num_missed = 3
    return app_of(source, decode=lambda ids: " ".join(f"w{token_id}" for token_id in ids))


def turn_to(name: str, pilot: Pilot) -> None:
    pilot.press(*KEYS[name])


@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("name", KEYS)
def test_screen(
    snap_compare: Snapshots, source: ScriptedKvSource, name: str, size: tuple[int, int]
) -> None:
    assert snap_compare(
        recorded(source, name),
        terminal_size=size,
        run_before=partial(turn_to, name),
        run_after=same_text_in_light_colours if size == (80, 24) else None,
    )


@pytest.mark.parametrize("name", KEYS)
def test_without_colour(
    monkeypatch: pytest.MonkeyPatch, snap_compare: Snapshots, source: ScriptedKvSource, name: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = recorded(source, name)
    assert snap_compare(app, run_before=partial(turn_to, name), of=f"test_screen[{name}-80x24]")
