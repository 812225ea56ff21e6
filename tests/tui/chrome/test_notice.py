"""The sentence below the header names the moment on every screen."""

from seqtop.live.playback import Playback
from seqtop.tui import seek
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.notice import notice_text
from seqtop.tui.ui_state import UiState
from tests.support.piloting import SCREENS, play, screen
from tests.support.scripted import ScriptedSource, scene


def paused(source: ScriptedSource) -> UiState:
    """The paused display of a source."""
    ui = UiState(source)
    ui.update()
    ui.time_travel.pause()
    return ui


def test_a_history_that_lacks_its_beginning_says_so() -> None:
    source, late = ScriptedSource(), ScriptedSource()
    scene(source, hostile="?")
    late.replace(source.state)
    assert notice_text(paused(source)) == "Step 40, the newest. ',' '.' step, space resumes."
    sentence = notice_text(paused(late))
    assert sentence == "Step 40, the newest; history from step 40. ',' '.' step, space resumes."


def test_a_recording_has_a_length_and_a_speed() -> None:
    source = ScriptedSource()
    scene(source, hostile="?")
    playback = Playback(source.history, "run.seqtop", paused=True, speed=2.5)
    ui = UiState(playback)
    sentence = notice_text(ui)
    assert " of 40, 00:00 of 00:0" in sentence
    assert " at 2.5x. ',' '.' step, space resumes." in sentence
    ui.time_travel.resume()
    assert notice_text(ui).endswith("space pauses.")
    ui.time_travel.go(seek.to_end(1), "")
    end = "p to the last preemption, e to the last end of a request"
    sentence = notice_text(ui)
    assert sentence.endswith(f"The end: {end}, 0 to the beginning, space plays from there.")


def test_every_screen_shows_the_moment(live: SeqtopApp) -> None:
    with play(live, (120, 40)) as pilot:
        for number, tabbed in enumerate(SCREENS, start=1):
            pilot.press(str(number), "p")
            assert isinstance(live.screen, tabbed)
            text = screen(live)
            assert "step 34 " in text.splitlines()[1]
            assert "Preempted here: req-7 (79 tokens lost, for " in " ".join(text.split())
            pilot.press("L")
            assert "● LIVE" in screen(live)
