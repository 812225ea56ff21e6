"""Sentences on the moment that is shown."""

from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.tui import position_text
from seqtop.tui.settings import Settings
from seqtop.tui.ui_state import UiState
from tests.support.scripted import ScriptedSource, scene


def test_without_a_history_there_are_no_keys_to_step_by() -> None:
    source = ScriptedSource()
    scene(source)
    ui = UiState(source, lambda: 0.0, Settings())
    ui.update()
    sentence = position_text.held(ui, "←/→")
    assert sentence == "Step 40, the newest. Space goes on."


def test_a_history_has_a_reach() -> None:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    ui = UiState(source, lambda: 0.0, Settings())
    ui.update()
    sentence = position_text.held(ui, "←/→")
    assert sentence.startswith("Step 40, the newest; ")
    assert "from step 0." in sentence
    assert sentence.endswith("←/→ step, space goes on.")


def test_a_recording_has_a_length_and_a_speed() -> None:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="?")
    assert source.history is not None
    replay = Playback(source.history, "run.seqtop", paused=True, speed=2.5)
    sentence = position_text.replayed(replay, "No swap.", "←/→")
    assert " of 40, 00:00 of 00:0" in sentence
    assert " at 2.5x. No swap. ←/→ step, space plays." in sentence
    replay.play()
    assert position_text.replayed(replay, "", "←/→").endswith("space pauses.")
