"""Going from screen to screen: by key and by click."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.tabs import ScreenTabs
from seqtop.tui.screens.sequences.screen import SequencesScreen
from tests.support.piloting import SCREENS, play, screen


def titles(app: SeqtopApp) -> list[str]:
    """The words on the line of tabs."""
    return [f"{key} {tabbed.TAB.title}" for key, tabbed in enumerate(SCREENS, start=1)]


def test_each_screen_has_a_number(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for key, wanted in enumerate(SCREENS, start=1):
            await pilot.press(str(key))
            await pilot.pause()
            assert type(app.screen) is wanted
            assert all(title in screen(app).splitlines()[3] for title in titles(app))
        await pilot.press("1")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)

    play(app, act, (80, 24))


def test_a_click_on_a_tab_goes_there(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for wanted, title in [*zip(SCREENS, titles(app), strict=True)][::-1]:
            x = screen(app).splitlines()[3].index(title)
            await pilot.click(ScreenTabs, offset=(x, 0))
            await pilot.pause()
            assert type(app.screen) is wanted
        before = app.screen
        await pilot.click(ScreenTabs, offset=(78, 0))
        assert app.screen is before

    play(app, act, (80, 24))


def test_the_tab_of_the_screen_on_show_stands_out(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for key, title in enumerate(titles(app), start=1):
            await pilot.press(str(key))
            await pilot.pause()
            tabs = app.screen.query_one(ScreenTabs)
            strip = tabs.render_line(0)
            bold = [part.text.strip() for part in strip if part.style and part.style.bold]
            assert bold == [title]

    play(app, act, (80, 24))


def test_a_low_terminal_has_no_room_for_tabs_but_the_keys_work(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        assert not app.screen.query_one(ScreenTabs).display
        await pilot.press("2")
        await pilot.pause()
        assert type(app.screen) is SCREENS[1]

    play(app, act, (80, 12))
