"""Going from screen to screen: by key and by click."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.tabs import ScreenTabs
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import SCREENS, play, screen


def titles(app: SeqtopApp) -> list[str]:
    """The words on the line of tabs."""
    return [f"{key} {tabbed.TAB.title}" for key, tabbed in enumerate(SCREENS, start=1)]


def test_each_screen_has_a_number_and_a_tab_to_click_that_stands_out(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        for key, (wanted, title) in enumerate(zip(SCREENS, titles(app), strict=True), start=1):
            pilot.press(str(key))
            shown = screen(app).splitlines()[3]
            strip = app.screen.query_one(ScreenTabs).render_line(0)
            assert type(app.screen) is wanted
            assert all(title in shown for title in titles(app))
            bold = [part.text.strip() for part in strip if part.style and part.style.bold]
            assert bold == [title]
        for wanted, title in [*zip(SCREENS, titles(app), strict=True)][::-1]:
            x = screen(app).splitlines()[3].index(title)
            pilot.click(ScreenTabs, offset=(x, 0))
            assert type(app.screen) is wanted
        before = app.screen
        pilot.click(ScreenTabs, offset=(78, 0))
        assert app.screen is before
        pilot.press("2", "1")
        assert isinstance(app.screen, SequencesScreen)


def test_a_low_terminal_has_no_room_for_tabs_but_the_keys_work(app: SeqtopApp) -> None:
    with play(app, (80, 12)) as pilot:
        assert not app.screen.query_one(ScreenTabs).display
        pilot.press("2")
        assert type(app.screen) is SCREENS[1]
