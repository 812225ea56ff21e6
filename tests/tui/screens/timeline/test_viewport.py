"""The viewport of the timeline: zooming, panning and following."""

import pytest

from seqtop.live.playback import Playback
from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.viewport import Extent, Mode, Viewport
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource, scene
from tests.support.timeline_screen import opened

START = 1_700_000_000.0
EXTENT = Extent(START, START + 60, START + 60, ends=False)


def test_a_lens_fits_all_zooms_pans_and_follows() -> None:
    viewport = Viewport()
    whole = viewport.window(EXTENT, 100)
    assert whole.column(EXTENT.first) == 0
    assert whole.column(EXTENT.last) is not None
    viewport.zoom(EXTENT, 100, 1)
    closer = viewport.window(EXTENT, 100)
    assert closer.cell == pytest.approx(whole.cell / 2, rel=0.05)
    assert closer.column(EXTENT.now) is not None
    later = EXTENT._replace(now=START + 90, last=START + 90)
    assert viewport.window(later, 100).column(START + 90) is not None
    viewport.pan(later, 100, -0.5)
    back = viewport.window(later, 100)
    assert back.start < closer.start + 30
    assert viewport.window(later._replace(now=START + 200), 100) == back
    viewport.follow(later, 100)
    assert viewport.window(later, 100).column(later.now) is not None
    viewport.pan(later, 100, -0.5)
    viewport.zoom(later, 100, -1)
    assert viewport.window(later, 100).cell == pytest.approx(back.cell * 2, rel=0.05)
    viewport.pan(later, 100, -3.0)
    assert viewport.window(later, 100).column(later.now) is None
    viewport.reveal(later, 100)
    assert viewport.window(later, 100).column(later.now) is not None


def test_zooming_comes_to_an_end_at_both_ends() -> None:
    viewport = Viewport()
    for by, least, most in ((1, 1e-4, 1.1e-4), (-1, 9e5, 1.1e6)):
        for _ in range(60):
            viewport.zoom(EXTENT, 100, by)
        assert least <= viewport.window(EXTENT, 100).cell <= most


def test_an_engine_that_has_run_long_is_first_shown_of_late() -> None:
    viewport = Viewport()
    long = Extent(START, START + 9_000, START + 9_000, ends=False)
    assert viewport.window(long, 100).start > START + 8_700
    assert viewport.window(long._replace(ends=True), 100).column(START) == 0
    viewport.mode = Mode.ALL
    assert viewport.window(long, 100).column(START) == 0


def test_zoom_pan_fit_and_follow(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        rows = opened(app, pilot)
        whole = rows.window
        assert whole.column(app.ui.state.time) is not None
        pilot.press("plus")
        closer = rows.window
        assert closer.cell < whole.cell
        assert closer.column(app.ui.state.time) is not None
        pilot.press("h")
        earlier = rows.window
        assert earlier.start == pytest.approx(closer.start - 0.25 * closer.width * closer.cell, 1)
        pilot.press("l")
        assert rows.window.start == pytest.approx(closer.start, abs=closer.cell)
        pilot.press("h", "h", "h", "f")
        assert rows.window.column(app.ui.state.time) is not None
        pilot.press("minus", "minus")
        assert rows.window.cell > whole.cell
        pilot.press("a")
        assert rows.window == whole


def test_opened_while_held_it_has_the_scale_it_has_when_live(app: SeqtopApp) -> None:
    scales: list[float] = []
    for keys in ("", "p", "0 right right"):
        if keys:
            app = SeqtopApp(scene(ScriptedSource(), hostile="?").source, clock=lambda: 0.0)
        with play(app, (100, 40)) as pilot:
            pilot.press(*keys.split())
            rows = opened(app, pilot)
            scales.append(rows.window.cell)
            assert rows.position_column is not None or not keys
            assert f"{fmt.seconds(rows.window.cell)}/cell" in screen(app)
    assert scales[0] == scales[1] == scales[2] < 1


def test_a_recording_has_the_scale_of_its_whole(app: SeqtopApp) -> None:
    history = app.ui.source.history
    replayed = SeqtopApp(Playback(history, "run.seqtop", paused=True), clock=lambda: 0.0)
    with play(replayed, (100, 40)) as pilot:
        pilot.press("right")
        rows = opened(replayed, pilot)
        scale = rows.window
        pilot.press("right_curly_bracket", "right")
        assert rows.window == scale
        assert rows.position_column is not None
