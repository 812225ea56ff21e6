"""The dialog of the objectives: who misses them, why, and the load that holds them."""

from pathlib import Path

import pytest

from seqtop.history import FileStore
from seqtop.live.playback import Playback
from seqtop.state.slo import Slo
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.slo_prompt import EXAMPLES, SloPrompt
from tests.support.greedy_runs import record_run
from tests.support.piloting import notices, play, screen, until, words


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("slo") / "run.seqtop"
    record_run(path, max_num_seqs=2)
    return path


def test_misses_are_shown_by_limit_and_cause_and_the_load_is_searched(recording: Path) -> None:
    with FileStore(recording) as store:
        source = Playback(store, str(recording), paused=True, position=store.last)
        app = SeqtopApp(source, clock=lambda: 0.0)
        with play(app, (160, 50)) as pilot:
            pilot.press("D", *"ttft=300ms e2e=2s", "enter")
            assert isinstance(app.screen, SloPrompt)
            assert "of 40 requests that ended or are late miss a limit" in words(app)
            assert "TTFT ≤ 300 ms" in screen(app)
            assert "max_num_seqs" in words(app).split("E2E ≤")[0], "the cause of the misses"
            pilot.press("ctrl+l")
            until(pilot, lambda: "load that holds for 99%: " in words(app))
            assert "with as recorded" not in words(app)
            assert "TTFT met" in screen(app)
            pilot.press("enter")
            assert not isinstance(app.screen, SloPrompt)
            assert any("TTFT ≤ 300 ms, E2E ≤ 2.00 s" in notice for notice in notices(app))


def test_its_examples_are_taken(recording: Path) -> None:
    with FileStore(recording) as store:
        app = SeqtopApp(Playback(store, str(recording), paused=True), clock=lambda: 0.0)
        with play(app, (120, 40)) as pilot:
            for text in (*(example for example, _ in EXAMPLES), "ttft=500ms,itl=50ms"):
                app.ui.latencies.limit(Slo())
                pilot.press("D", *text, "enter", "enter")
                assert not isinstance(app.screen, SloPrompt), text
                assert app.ui.latencies.slo, text
