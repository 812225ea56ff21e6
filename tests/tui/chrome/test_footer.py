"""The footer always lists the most important keys."""

import pytest
from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.chrome.footer import KeyFooter
from tests.support.piloting import play, screen


@pytest.mark.parametrize("size", [(40, 10), (80, 24)])
def test_the_way_out_is_always_shown(app: SeqtopApp, size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for width, height in (size, (120, 30), size):
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            await pilot.pause()
            last = screen(app).splitlines()[-1]
            for key in ("q Quit", "? Help", "space Pause", "/ Filter"):
                assert key in last
            assert ("x Abort" in last) == (width > 40)

    play(app, act, size)


def test_the_key_of_pause_says_what_it_does(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        for word in ("Resume", "Pause"):
            await pilot.press("space")
            await pilot.pause()
            assert f"space {word} " in screen(app).splitlines()[-1]

    play(app, act, (80, 24))


def test_a_footer_that_is_mounted_after_the_bindings_were_published(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await app.screen.query_one(KeyFooter).remove()
        await app.screen.mount(KeyFooter())
        await pilot.pause()
        assert "q Quit" in screen(app).splitlines()[-1]

    play(app, act)
