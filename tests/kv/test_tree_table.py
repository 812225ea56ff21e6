"""The table of prefix trees."""

from textual.pilot import Pilot

from tests.support.kv_scene import ScriptedKvSource, app_of, digest
from tests.support.piloting import play, screen


def test_a_tree_leads_to_its_blocks(source: ScriptedKvSource) -> None:
    app = app_of(source)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2", "down", "down")
        assert "its first block is not known" not in screen(app)
        await pilot.press("enter")
        await pilot.pause()
        assert app.ui.block.key == (0, digest(3, 0))
        assert "LoRA poems" in screen(app)

    play(app, act, (100, 30))
