"""Steps are read from the history when they come into sight."""

from collections import Counter
from collections.abc import Iterator

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import CompressedData, RecordingError
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.steps.screen import StepsScreen
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, scene
from tests.support.steps_screen import opened

MANY = 2_000


class Unreadable(MemoryStore):
    def _read(self, stored: CompressedData) -> bytes:
        raise RecordingError("it is broken")

    def _payloads(self, start: int, stop: int) -> list[bytes | None]:
        raise RecordingError("it is broken")


def test_a_step_that_cannot_be_read_is_a_line_that_says_so() -> None:
    source = ScriptedSource(history=Unreadable())
    scene(source, hostile="?")
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app) as pilot:
        opened(app, pilot)
        assert "This step cannot be read." in screen(app)


def test_reading_costs_what_is_in_sight(
    lines: Counter[LineView], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs", max_tokens=MANY)
    script.step(prefill={"runs": 40})
    for _ in range(MANY):
        script.step(decode=[])
    app = SeqtopApp(source, clock=lambda: 0.0)

    history = source.history
    events, reads = history.events, []

    def read(start: int, stop: int) -> Iterator[tuple[int, object]]:
        reads.append(stop)
        return events(start, stop)

    monkeypatch.setattr(history, "events", read)
    with play(app, (100, 30)) as pilot:
        rows = opened(app, pilot)
        assert isinstance(app.screen, StepsScreen)
        assert rows.num_rows == MANY + 1
        assert len(reads) <= rows.size.height + 1

        def cost(*keys: str) -> tuple[int, int]:
            decoded, drawn = len(reads), lines[rows]
            pilot.press(*keys)
            pilot.draw()
            return len(reads) - decoded, lines[rows] - drawn

        assert cost() == (0, 0)
        decoded, drawn = cost("g")
        assert decoded <= rows.size.height + 1
        assert drawn <= 2 * rows.size.height
        decoded, drawn = cost("down")
        assert decoded <= 1
        assert drawn == 2
        cost("G")
        script.step(decode=[])
        decoded, drawn = cost()
        assert decoded == 1
        assert drawn <= 2 * rows.size.height
