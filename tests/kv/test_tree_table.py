"""The table of prefix trees."""

from tests.support.kv_scene import ScriptedKvSource, app_of, digest
from tests.support.piloting import play, screen


def test_a_tree_leads_to_its_blocks(source: ScriptedKvSource) -> None:
    app = app_of(source)
    with play(app, (100, 30)) as pilot:
        pilot.press("2", "down", "down")
        assert "its first block is not known" not in screen(app)
        pilot.press("enter")
        assert app.ui.block.key == (0, digest(3, 0))
        assert "LoRA poems" in screen(app)
