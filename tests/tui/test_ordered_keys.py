"""Keys that arrive at once, as from a script or a paste, do what they do one by one."""

from collections.abc import Callable

import pytest
from textual.widgets import Input, TextArea

from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.help import HelpScreen
from seqtop.tui.dialogs.prompts import BlockPrompt
from seqtop.tui.dialogs.submit import SubmitDialog
from seqtop.tui.screens.blocks.screen import BlocksScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.timeline.screen import TimelineScreen
from tests.support.piloting import burst, play, until
from tests.support.scripted import ScriptedSource, scene


@pytest.fixture
def kept() -> ScriptedSource:
    """The scene, on record."""
    source = ScriptedSource()
    scene(source)
    return source


def typed(app: SeqtopApp) -> str:
    field = app.focused
    if isinstance(field, TextArea):
        return field.text
    return field.value if isinstance(field, Input) else ""


def on(app: SeqtopApp, screen: type) -> bool:
    return type(app.screen) is screen


def row(app: SeqtopApp) -> int | None:
    return app.ui.view.index(app.ui.cursor.seq_id)


def scripted(app: SeqtopApp) -> ScriptedSource:
    assert isinstance(app.ui.source, ScriptedSource)
    return app.ui.source


CASES: dict[str, Callable[[SeqtopApp], object]] = {
    # sort
    "sq\rb17\r": lambda app: app.ui.blocks.block == 17 and on(app, BlocksScreen),
    "so\rr/req\r↓↓": lambda app: (
        (app.ui.view.sort, row(app), app.ui.view.filter.source)
        == (Sort("out", descending=False), 2, "req")
    ),
    # columns
    "c↓ \rsw\r": lambda app: (
        len(app.ui.preferences.columns) > 1 and app.ui.view.sort.key == "waited"
    ),
    # blocks
    "b1234\rcb\x1b1/b": lambda app: typed(app) == "b" and on(app, SequencesScreen),
    # moments
    ":x\x1b/:\x1b:12\rb1\x7f8\r3": lambda app: (
        (app.ui.state.step, app.ui.blocks.block) == (12, 8) and on(app, TimelineScreen)
    ),
    # copying
    "yry\x1b↓": lambda app: app.clipboard in app.ui.state.requests and row(app) == 1,
    # confirming
    "xnxqxy↓": lambda app: row(app) == 1 and scripted(app).aborted == ["req-1"],
    # submitting
    "nnbx\t\x7f\x7f9\r↓": lambda app: (
        [(prompt, params.max_tokens) for prompt, params in scripted(app).submitted]
        == [("nbx", 9)] and row(app) == 1
    ),
    "n/\x1bnq": lambda app: on(app, SubmitDialog) and typed(app) == "q",
    # filter and search
    "/status:wait\rsw\r": lambda app: (
        len(app.ui.view) == 5 and app.ui.view.sort.key == "waited"
    ),
    "/1\\\x1bb": lambda app: on(app, BlockPrompt) and not app.ui.view.filter.source,
    "\\done\rmd": lambda app: app.ui.selection[0].request_id == "done-1",
    # help and screens
    "?q3?": lambda app: on(app, HelpScreen),
    "5b4\x1b1↓": lambda app: row(app) == 1 and on(app, SequencesScreen),
}  # fmt: skip


MORE = pytest.mark.release("more of the same kind")
EVERY_OTHER = [
    pytest.param(keys, marks=[MORE] * (number % 2), id=repr(keys))
    for number, keys in enumerate(CASES)
]


@pytest.mark.parametrize("keys", EVERY_OTHER)
def test_a_burst_of_keys_does_what_the_keys_do(keys: str, kept: ScriptedSource) -> None:
    app = SeqtopApp(kept, clock=lambda: 0.0)
    with play(app, (80, 24)) as pilot:
        burst(app, keys)
        until(pilot, lambda: not app.has_pending_keys and bool(CASES[keys](app)))
