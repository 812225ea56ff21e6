"""How it looks: the scene at three sizes, and each dialog, against pictures that were looked at."""

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.history.memory_store import MemoryStore
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.checks.screen import ChecksScreen
from tests.support.piloting import SCREENS, checked
from tests.support.scripted import HOSTILE, Script, ScriptedSource, scene

CHECKS = str(SCREENS.index(ChecksScreen) + 1)
SIZES = [(80, 24), (120, 40), (200, 60)]


@pytest.fixture
def lively() -> SeqtopApp:
    """The app having watched the scene from its beginning, so that it knows the rates."""
    source = ScriptedSource()
    app = SeqtopApp(source, clock=lambda: 0.0)
    source.after_event = app.ui.update
    scene(source)
    return app


@pytest.fixture
def recorded() -> SeqtopApp:
    """The same, with a source that keeps what was."""
    source = ScriptedSource(history=MemoryStore())
    app = SeqtopApp(source, clock=lambda: 0.0)
    source.after_event = app.ui.update
    scene(source, hostile=HOSTILE.replace("\ud800", ""))  # which the wire does not carry
    return app


@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_sequences(
    lively: SeqtopApp, snap_compare: Callable[..., bool], size: tuple[int, int]
) -> None:
    assert snap_compare(lively, terminal_size=size)


@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
def test_a_preempted_sequence_in_detail(
    lively: SeqtopApp, snap_compare: Callable[..., bool], size: tuple[int, int]
) -> None:
    keys = ["down"] * 8 + ["enter", "right_square_bracket", "right_square_bracket"]
    assert snap_compare(lively, terminal_size=size, press=keys)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("text", ["enter", "down", "down"]),
        ("blocks", ["enter", "down", "right_square_bracket"]),
        ("filter", ["slash", *"prompt>1k promt:"]),
        ("sort", ["greater_than_sign", "s"]),
        ("submit", ["n"]),
        ("abort", ["x"]),
        ("help", ["question_mark"]),
        ("paused", ["space"]),
    ],
)
def test_at_80_columns(
    lively: SeqtopApp, snap_compare: Callable[..., bool], name: str, keys: list[str]
) -> None:
    assert snap_compare(lively, press=keys)


@pytest.mark.parametrize("look", ["seqtop-dark", "seqtop-light", "no-colour"])
@pytest.mark.parametrize("presses", [1, 2], ids=["borders", "likelihood"])
def test_tokens_in_the_text(
    monkeypatch: pytest.MonkeyPatch, snap_compare: Callable[..., bool], presses: int, look: str
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    source = ScriptedSource()
    scene(source)
    for sequence in source.state.sequences.values():
        count = len(sequence.output_token_ids)
        sequence.output_logprobs = [(-0.1, -0.4, -1.2, -0.2, -4.0)[n % 5] for n in range(count)]
    app = SeqtopApp(source, clock=lambda: 0.0)
    if look != "no-colour":
        app.theme = look

    async def mark(pilot: Pilot[int]) -> None:
        await pilot.press("enter", *["i"] * presses)
        app.clear_notifications()
        await pilot.pause()

    assert snap_compare(app, run_before=mark)


@pytest.mark.parametrize("size", SIZES[:2], ids="{0[0]}x{0[1]}".format)
def test_the_past(
    recorded: SeqtopApp, snap_compare: Callable[..., bool], size: tuple[int, int]
) -> None:
    keys = ["p"]
    assert snap_compare(recorded, terminal_size=size, press=keys)


def test_asking_for_a_step(recorded: SeqtopApp, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(recorded, press=["colon", *"2x8"])


def test_help_in_full(lively: SeqtopApp, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(lively, terminal_size=(120, 94), press=["question_mark"])


@pytest.mark.parametrize("theme", ["seqtop-light", "textual-dark"])
def test_other_themes(lively: SeqtopApp, snap_compare: Callable[..., bool], theme: str) -> None:
    async def turn(pilot: Pilot[int]) -> None:
        await pilot.pause()
        pilot.app.theme = theme
        await pilot.pause()

    assert snap_compare(lively, terminal_size=(120, 40), run_before=turn)


def test_without_colour(monkeypatch: pytest.MonkeyPatch, snap_compare: Callable[..., bool]) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    source = ScriptedSource()
    scene(source)
    assert snap_compare(SeqtopApp(source, clock=lambda: 0.0), terminal_size=(120, 40))


def test_lost(lively: SeqtopApp, snap_compare: Callable[..., bool]) -> None:
    async def lose(pilot: Pilot[int]) -> None:
        await pilot.pause()
        source = lively.ui.source
        assert isinstance(source, ScriptedSource)
        source.connect(ConnectionState.LOST, "No word from the engine at ipc:///run/demo.")
        lively.draw()
        await pilot.pause()

    assert snap_compare(lively, run_before=lose)


def test_empty(snap_compare: Callable[..., bool]) -> None:
    source = ScriptedSource()
    source.connect(ConnectionState.CONNECTING)
    assert snap_compare(SeqtopApp(source, clock=lambda: 0.0))


def test_forty_by_ten(lively: SeqtopApp, snap_compare: Callable[..., bool]) -> None:
    assert snap_compare(lively, terminal_size=(40, 10))


@pytest.mark.parametrize("look", ["seqtop-dark", "seqtop-light", "no-colour"])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
def test_blocks(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    source = ScriptedSource()
    num_blocks = 1_000 if size[0] > 80 else 256
    scene(source, tells_cached=True, num_cpu_blocks=64, num_gpu_blocks=num_blocks)
    app = SeqtopApp(source, clock=lambda: 0.0)
    if look != "no-colour":
        app.theme = look
    assert snap_compare(app, terminal_size=size, press=["2", "b", "3", "enter"])


@pytest.mark.parametrize("look", ["seqtop-dark", "seqtop-light", "no-colour"])
@pytest.mark.parametrize("size", [(80, 24), (160, 50)], ids="{0[0]}x{0[1]}".format)
def test_checks(
    monkeypatch: pytest.MonkeyPatch,
    snap_compare: Callable[..., bool],
    size: tuple[int, int],
    look: str,
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile=HOSTILE.replace("\ud800", ""), max_num_batched_tokens=200)
    app = SeqtopApp(source, clock=lambda: 0.0)
    if look != "no-colour":
        app.theme = look

    async def check(pilot: Pilot[int]) -> None:
        await pilot.press(CHECKS)
        await checked(app, pilot)
        await pilot.press("down")

    assert snap_compare(app, terminal_size=size, run_before=check)


def test_checks_that_hold(snap_compare: Callable[..., bool]) -> None:
    source = ScriptedSource(history=MemoryStore())
    script = Script(source)
    script.arrive("one")
    script.step(prefill={"one": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def check(pilot: Pilot[int]) -> None:
        await pilot.press(CHECKS)
        await checked(app, pilot)

    assert snap_compare(app, run_before=check)
