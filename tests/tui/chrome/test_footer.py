"""The footer always lists the most important keys."""

import pytest

from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.footer import KeyFooter
from tests.support.piloting import play, screen


@pytest.mark.parametrize("size", [(40, 10), (80, 24)])
def test_the_way_out_is_always_shown(app: SeqtopApp, size: tuple[int, int]) -> None:
    with play(app, size) as pilot:
        for width, height in (size, (120, 30), size):
            pilot.resize_terminal(width, height)
            last = screen(app).splitlines()[-1]
            for key in ("q Quit", "? Help", "space Pause", "/ Filter"):
                assert key in last
            assert ("x Abort" in last) == (width > 40)


def test_the_key_of_pause_says_what_it_does(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        for word in ("Resume", "Pause"):
            pilot.press("space")
            assert f"space {word} " in screen(app).splitlines()[-1]


def test_every_screen_has_the_step_before_the_place_of_the_cursor_and_the_time(
    app: SeqtopApp,
) -> None:
    """The key of the step before is the same; the place follows the cursor."""
    with play(app, (140, 30)) as pilot:
        pilot.press("down")
        for key, text in (
            ("1", "row 2 of 17"),
            ("2", "block 0 of 0 to 255"),
            ("3", "row 2 of 17"),
            ("4", "row 41 of 41"),
            ("5", ""),
            ("6", ""),
        ):
            pilot.press(key)
            pilot.draw()
            last = screen(app).splitlines()[-1]
            assert last.rstrip().endswith(f"{text}   {fmt.clock(app.ui.now, 0)}")
            assert "q Quit" in last
            assert ", Back" in last
        for key in "1234":
            pilot.press(key)
            last = screen(app).splitlines()[-1]
            pilot.press("up" if key == "4" else "down")
            assert screen(app).splitlines()[-1] != last, key


def test_a_footer_that_is_mounted_after_the_bindings_were_published(app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.run(app.screen.query_one(KeyFooter).remove())
        pilot.run(app.screen.mount(KeyFooter()))
        pilot.pause()
        assert "q Quit" in screen(app).splitlines()[-1]


def test_a_click_on_a_key_presses_it_and_its_tooltip_says_what_it_does(app: SeqtopApp) -> None:
    with play(app) as pilot:
        footer = app.screen.query_one(KeyFooter)
        x = screen(app).splitlines()[-1].index("space Pause")
        pilot.hover(KeyFooter, offset=(x, 0))
        assert footer.tooltip == "Freeze the display, or resume"
        pilot.click(KeyFooter, offset=(x + 5, 0))
        assert app.ui.paused
        pilot.hover(KeyFooter, offset=(99, 0))  # nothing is there
        assert footer.tooltip is None


def test_a_screen_that_is_shown_again_has_the_theme_that_was_chosen_meanwhile(
    app: SeqtopApp,
) -> None:
    with play(app) as pilot:
        dark = app.screen.query_one(KeyFooter).styles.background
        pilot.press("2", "T", "1")
        assert app.screen.query_one(KeyFooter).styles.background != dark
