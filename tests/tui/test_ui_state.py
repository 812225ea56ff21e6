"""The state of the display after the engine's state was replaced or has dropped requests."""

import threading

import pytest

from seqtop.live.playback import Playback
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.latency import Latencies
from seqtop.state.listener import Listener
from seqtop.tui.app import SeqtopApp
from seqtop.tui.settings import Settings
from seqtop.tui.ui_state import MAX_STREAMS, Engines, UiState
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene


def test_a_restarted_engine_replaces_everything(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app, (120, 40)) as pilot:
        running = {
            sequence.request_id
            for sequence in source.state.sequences.values()
            if sequence.status == SequenceStatus.RUNNING
        }
        fresh = ScriptedSource()
        script = Script(fresh, engine_id="again", incarnation="b2")
        script.arrive("new-1", "A new beginning.")
        source.replace(fresh.state)
        pilot.draw()
        text = screen(app)
        assert "again" in text
        assert "▌new-1" in text
        assert "req-1" not in text
        assert "The engine was restarted at " in text
        assert f"{len(running)} requests were running; ',' shows its last step." in text


def test_sequences_that_the_state_drops_leave_the_table() -> None:
    source = ScriptedSource(max_finished=2)
    script = Script(source)
    app = SeqtopApp(source)
    with play(app) as pilot:
        for index in range(6):
            script.arrive(f"r-{index}")
            script.step(
                prefill={f"r-{index}": 40}, stop={f"r-{index}": SequenceStatus.FINISHED_STOPPED}
            )
            pilot.draw()
        assert len(app.ui.view) == len(source.state.sequences) == 2
        assert app.ui.cursor.seq_id in source.state.sequences
        assert "6 finished" in screen(app)


def test_each_engine_has_a_state_of_its_own_and_one_is_shown() -> None:
    sources = [ScriptedSource() for _ in range(3)]
    engines = Engines(sources, lambda: 0.0, Settings())
    assert len(engines) == 3
    assert [ui.source for ui in engines.all] == sources
    engines.shown_index = 2
    assert engines.ui.source is sources[2]


def test_an_engine_whose_thread_applies_events_already_waits_for_its_display() -> None:
    class Watched(ScriptedSource):
        def add_listener(self, listener: Listener) -> None:
            free = threading.Thread(target=lambda: taken.append(self.lock.acquire(timeout=0)))
            free.start()
            free.join()
            super().add_listener(listener)

    taken: list[bool] = []
    Engines([Watched(), Watched()], lambda: 0.0, Settings())
    assert taken == [False, False]


def test_a_recording_that_was_not_played_has_the_times_between_its_tokens() -> None:
    source = ScriptedSource()
    scene(source)
    history, state, played = source.history, EngineState(), Latencies()
    for _, event in history.events(0, history.last):
        assert event is not None
        played.observe(state, state.apply(event))
    gaps = played.now.windows["itl"]
    assert len(gaps.values) > 10
    ui = UiState(Playback(history, "run", paused=True, position=history.last))
    jumped = ui.measured.windows["itl"]
    assert sorted(jumped.values) == pytest.approx(sorted(gaps.values))
    assert [*jumped.times] == sorted(jumped.times)


def test_the_streams_of_the_engines_looked_at_last_are_read() -> None:
    sources = [ScriptedSource() for _ in range(MAX_STREAMS + 2)]

    def read() -> list[int]:
        return [number for number, source in enumerate(sources) if source.is_subscribed]

    engines = Engines(sources, lambda: 0.0, Settings())
    assert read() == [0]
    for shown in range(1, MAX_STREAMS + 1):
        engines.shown_index = shown
        engines.subscribe()
    assert read() == [*range(1, MAX_STREAMS + 1)]
    first = engines.all[1].time_travel
    first.pause()
    engines.shown_index += 1
    engines.subscribe()
    assert read() == [*range(1, MAX_STREAMS + 2)], "a paused engine's history goes on"
    first.resume()
    engines.subscribe()
    assert read() == [*range(2, MAX_STREAMS + 2)]


@pytest.mark.parametrize(
    ("num_engines", "conditions"), [(MAX_STREAMS, ()), (MAX_STREAMS + 1, ("waiting>1",))]
)
def test_all_streams_are_read_of_a_few_engines_and_for_conditions(
    num_engines: int, conditions: tuple[str, ...]
) -> None:
    sources = [ScriptedSource() for _ in range(num_engines)]
    Engines(sources, lambda: 0.0, Settings(on=conditions or None))
    assert all(source.is_subscribed for source in sources)
