"""Going to a block by its number."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.block_prompt import BlockPrompt
from tests.support.block_screen import pool
from tests.support.piloting import notices, play


def test_a_block_that_is_not_there_is_named(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("b", "minus", "enter")
        assert isinstance(app.screen, BlockPrompt)
        await pilot.press("backspace", *"777", "enter")
        await pilot.pause()
        assert notices(app) == ["There is no block 777; the last is 255."]
        assert pool(app).cursor == 255

    play(app, act, (80, 24))
