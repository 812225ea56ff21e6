"""Snapshots of every screen: two sizes, in light colours and without colour.

More of the block map, the checks and the dialogs is in `test_snapshots.py`, the screens for
KV-cache events are in `tests/kv/test_screens.py`.
"""

from functools import partial

import pytest

from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.settings import Settings
from tests.support.piloting import Pilot, checked
from tests.support.scripted import ScriptedSource, scene
from tests.support.snapshots import COLUMNS, Snapshots, same_text_in_light_colours

KEYS = {
    "sequences": ["enter", "down", "down"],  # with its detail
    "blocks": ["down", "2"],
    "timeline": ["p", "3"],
    "steps": ["p", "4"],
    "checks": ["5", "down"],
    "overview": ["6"],
    "help": ["question_mark"],
    "fleet": ["F", "down"],
}

SIZES = [(name, size) for name in KEYS for size in ((80, 24), (200, 80 if name == "help" else 60))]
MORE = pytest.mark.release("the same screens once more")
FEW = ("sequences", "blocks", "steps")
FEW_AND_MORE = [pytest.param(name, marks=() if name in FEW else MORE) for name in KEYS]


def recorded(*, num_engines: int = 1) -> SeqtopApp:
    sources = [ScriptedSource() for _ in range(num_engines)]
    app = SeqtopApp(*sources, clock=lambda: 0.0, settings=Settings(columns=COLUMNS))
    for number, (source, ui) in enumerate(zip(sources, app.engines.all, strict=True)):
        source.after_event = ui.update
        name = f"rank-{number}" if num_engines > 1 else "demo"
        scene(source, engine_id=name)
    if num_engines > 1:
        sources[-1].connect(ConnectionState.LOST, "No word from the engine.")
    return app


def turn_to(name: str, pilot: Pilot) -> None:
    first, *others = KEYS[name]
    pilot.press(first)
    if name == "checks":  # before that there is nothing to go through
        assert isinstance(pilot.app, SeqtopApp)
        checked(pilot.app, pilot)
    pilot.press(*others)


@pytest.mark.parametrize(
    ("name", "size"),
    SIZES,
    ids=lambda value: value if isinstance(value, str) else "{}x{}".format(*value),
)
def test_screen(snap_compare: Snapshots, name: str, size: tuple[int, int]) -> None:
    app = recorded(num_engines=3 if name == "fleet" else 1)
    assert snap_compare(
        app,
        terminal_size=size,
        run_before=partial(turn_to, name),
        run_after=same_text_in_light_colours if size == (80, 24) else None,
    )


@pytest.mark.parametrize("name", FEW_AND_MORE)
def test_without_colour(
    monkeypatch: pytest.MonkeyPatch, snap_compare: Snapshots, name: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = recorded(num_engines=3 if name == "fleet" else 1)
    assert snap_compare(app, run_before=partial(turn_to, name), of=f"test_screen[{name}-80x24]")
