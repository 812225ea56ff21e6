"""Snapshots of dialogs and panes in the scene, and of what no other snapshot has."""

import pytest

from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.settings import Settings
from seqtop.wire.arrays import Floats
from tests.support.checks_screen import KEY as CHECKS
from tests.support.piloting import Pilot, checked, screen, until
from tests.support.scripted import ScriptedSource, scene
from tests.support.snapshots import COLUMNS, Snapshots


@pytest.fixture
def lively() -> SeqtopApp:
    """The app having watched the scene from its beginning, so that it knows the rates."""
    source = ScriptedSource()
    app = SeqtopApp(source, clock=lambda: 0.0, settings=Settings(columns=COLUMNS))
    source.after_event = app.ui.update
    scene(source)
    return app


def test_a_preempted_sequence_in_detail(lively: SeqtopApp, snap_compare: Snapshots) -> None:
    def explain(pilot: Pilot) -> None:
        pilot.press(*["down"] * 8, "enter", "o", "o")
        until(pilot, lambda: "first token" in screen(lively))
        until(pilot, lambda: "Reading the history" not in screen(lively))

    assert snap_compare(lively, terminal_size=(120, 40), run_before=explain)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("blocks", ["enter", "down", "o"]),
        ("filter", ["slash", *"prompt>1k promt:"]),
        ("sort", ["greater_than_sign", "s"]),
        ("submit", ["n"]),
        ("abort", ["x"]),
    ],
)
def test_at_80_columns(
    lively: SeqtopApp, snap_compare: Snapshots, name: str, keys: list[str]
) -> None:
    assert snap_compare(lively, press=keys)


@pytest.mark.parametrize(
    ("marks", "look"), [("borders", "dark"), ("likelihood", "dark"), ("likelihood", "no-colour")]
)
def test_tokens_in_the_text(
    monkeypatch: pytest.MonkeyPatch, snap_compare: Snapshots, marks: str, look: str
) -> None:
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    source = ScriptedSource()
    scene(source)
    for sequence in source.state.sequences.values():
        count = len(sequence.output_token_ids)
        logprobs = [(-0.1, -0.4, -1.2, -0.2, -4.0)[n % 5] for n in range(count)]
        sequence.output_logprobs = Floats.of(logprobs)
    app = SeqtopApp(source, clock=lambda: 0.0)

    def mark(pilot: Pilot) -> None:
        pilot.press("enter", *["i"] * (1 if marks == "borders" else 2))
        app.clear_notifications()
        pilot.pause()

    assert snap_compare(
        app, run_before=mark, of="" if look == "dark" else f"test_tokens_in_the_text[{marks}-dark]"
    )


def test_the_past(lively: SeqtopApp, snap_compare: Snapshots) -> None:
    assert snap_compare(lively, press=["p"])


def test_asking_for_a_step(lively: SeqtopApp, snap_compare: Snapshots) -> None:
    assert snap_compare(lively, press=["colon", *"2x8"])


def test_lost(lively: SeqtopApp, snap_compare: Snapshots) -> None:
    def lose(pilot: Pilot) -> None:
        pilot.pause()
        source = lively.ui.source
        assert isinstance(source, ScriptedSource)
        source.connect(ConnectionState.LOST, "No word from the engine at ipc:///run/demo.")
        lively.draw()

    assert snap_compare(lively, run_before=lose)


def test_empty(snap_compare: Snapshots) -> None:
    source = ScriptedSource()
    source.connect(ConnectionState.CONNECTING)
    assert snap_compare(SeqtopApp(source, clock=lambda: 0.0))


def test_forty_by_ten(lively: SeqtopApp, snap_compare: Snapshots) -> None:
    assert snap_compare(lively, terminal_size=(40, 10))


@pytest.mark.parametrize("look", ["dark", "no-colour"])
def test_a_large_block_map(
    monkeypatch: pytest.MonkeyPatch, snap_compare: Snapshots, look: str
) -> None:
    """With blocks that the prefix cache holds, blocks in CPU memory and a selected one."""
    if look == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    source = ScriptedSource()
    scene(source, tells_cached=True, num_cpu_blocks=64, num_gpu_blocks=1_000)
    app = SeqtopApp(source, clock=lambda: 0.0)
    of = "" if look == "dark" else "test_a_large_block_map[dark]"
    assert snap_compare(app, terminal_size=(160, 50), press=["2", "b", "3", "enter"], of=of)


def test_checks(snap_compare: Snapshots) -> None:
    source = ScriptedSource()
    scene(source, max_num_batched_tokens=200)
    app = SeqtopApp(source, clock=lambda: 0.0)

    def check(pilot: Pilot) -> None:
        pilot.press(CHECKS)
        checked(app, pilot)
        pilot.press("down")

    assert snap_compare(app, run_before=check)
