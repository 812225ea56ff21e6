"""The dialog that predicts a recorded run with other settings."""

from functools import partial
from pathlib import Path

import msgspec
import pytest

from seqtop.history import FileStore
from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs import whatif
from seqtop.whatif.driver import DriverError, ShowProgress
from seqtop.whatif.predict import Prediction, Question, predict
from seqtop.wire.messages import EngineInfo, Event
from tests.support.greedy_runs import record_run
from tests.support.piloting import play, screen, until
from tests.support.scripted import ScriptedSource


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "run.seqtop"
    record_run(path)
    return path


def test_other_settings_are_predicted(recording: Path) -> None:
    with FileStore(recording) as store:
        app = SeqtopApp(Playback(store, str(recording), paused=True), clock=lambda: 0.0)
        with play(app, (120, 40)) as pilot:
            pilot.press("right", "I")
            assert "num_gpu_blocks 40" in words(app)
            pilot.press(*"blocks=3", "enter")
            until(pilot, lambda: "No prediction: no setting 'blocks'" in screen(app))
            pilot.press(*["backspace"] * 8)
            pilot.press(*"num_gpu_blocks=+60%", "enter")
            until(pilot, lambda: "num_gpu_blocks: 40 → 64" in screen(app))
            assert "recorded" in screen(app)
            assert "unchanged settings: " in screen(app)
            pilot.press("down", *["pagedown"] * 9)
            until(pilot, lambda: "A: recorded B: PREDICTION" in words(app))
            assert "requests finished" in words(app)
            pilot.press("escape")
            assert "What if" not in screen(app)


def test_objectives_are_advised_on(recording: Path) -> None:
    with FileStore(recording) as store:
        app = SeqtopApp(Playback(store, str(recording), paused=True), clock=lambda: 0.0)
        with play(app, (160, 40)) as pilot:
            pilot.press("I", *"ttft=fast", "enter")
            until(pilot, lambda: "No advice: ttft: 'fast' is not a time" in screen(app))
            pilot.press(*["backspace"] * 9)
            pilot.press(*"ttft=300ms, e2e=2s", "enter")
            until(pilot, lambda: "goodput" in screen(app))
            assert "TTFT met" in screen(app)
            assert "load held" in screen(app)


def test_enter_again_predicts_from_a_recording_that_cannot_be_repeated(tmp_path: Path) -> None:
    def claim_more_blocks(event: Event) -> Event:
        if isinstance(event, EngineInfo):
            return msgspec.structs.replace(event, num_gpu_blocks=64)
        return event

    path = tmp_path / "run.seqtop"
    record_run(path, claim_more_blocks)
    with FileStore(path) as store:
        app = SeqtopApp(Playback(store, str(path), paused=True), clock=lambda: 0.0)
        with play(app, (120, 40)) as pilot:
            pilot.press("I", *"max_num_seqs=12,", "enter")
            until(pilot, lambda: "Enter predicts anyway." in words(app))
            assert "predicted" not in words(app).split("no prediction")[0]
            pilot.press("enter")
            until(pilot, lambda: "PREDICTION, of no real run:" in words(app))


def test_a_prediction_ends_with_its_dialog(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []

    def observed(question: Question, progress: ShowProgress) -> Prediction:
        try:
            return predict(question, progress)
        except DriverError as error:
            reasons.append(str(error))
            raise

    monkeypatch.setattr(whatif, "predict", observed)
    with FileStore(recording) as store:
        app = SeqtopApp(Playback(store, str(recording), paused=True), clock=lambda: 0.0)
        with play(app, (120, 40)) as pilot:
            pilot.press("I", *"num_gpu_blocks=64", "enter", "escape")
            until(pilot, lambda: reasons == ["the dialog was closed"])


def test_the_history_of_a_running_engine_is_used_from_its_start(recording: Path) -> None:
    with FileStore(recording) as store:
        events = [event for _, event in store.events(-1, store.last) if event is not None]
    whole, late = ScriptedSource(*events), ScriptedSource()
    state = EngineState()
    for event in events[:200]:
        state.apply(event)
    late.replace(state)
    for source, answer in (
        (whole, "preemptions"),
        (late, "No prediction: the recording starts in the middle of a run"),
    ):
        app = SeqtopApp(source, clock=lambda: 0.0)
        with play(app, (120, 40)) as pilot:
            pilot.press("I", *"num_gpu_blocks=64", "enter")
            until(pilot, partial(_shows, app, answer))


def _shows(app: SeqtopApp, text: str) -> bool:
    return text in words(app)


def words(app: SeqtopApp) -> str:
    return " ".join(screen(app).split())
