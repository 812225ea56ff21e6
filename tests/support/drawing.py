"""Counts the lines that widgets draw."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from textual._compositor import Compositor
from textual.strip import Strip

from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.line_view import LineView
from tests.support import settling
from tests.support.piloting import Pilot
from tests.support.scripted import Script, ScriptedSource


@contextmanager
def counted_lines() -> Iterator[Counter[LineView]]:
    """Counts, for each view, the lines that Textual asks it to draw."""
    counts: Counter[LineView] = Counter()
    render_line = LineView.render_line

    def spy(view: LineView, y: int) -> Strip:
        counts[view] += 1
        return render_line(view, y)

    frames = mock.patch.object(Compositor, "render_update", settling.textual_render_update)
    with frames, mock.patch.object(LineView, "render_line", spy):
        yield counts


def crowd(number: int) -> tuple[Script, SeqtopApp]:
    """An engine with `number` waiting requests and one that runs."""
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    for index in range(number):
        script.arrive(f"waits-{index}")
    return script, SeqtopApp(source, clock=lambda: 0.0)


def drawn(app: SeqtopApp, pilot: Pilot, lines: Counter[LineView]) -> dict[str, int]:
    """Wait until nothing is left to draw; how many lines each view has drawn so far."""
    pilot.draw()
    return {view.id or type(view).__name__: lines[view] for view in app.screen.query(LineView)}
