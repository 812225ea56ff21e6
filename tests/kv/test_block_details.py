"""The details of a block walk along its prefix."""

from tests.support.kv_scene import ScriptedKvSource, app_of, digest
from tests.support.piloting import play, screen


def test_a_chain_is_walked_by_keys(source: ScriptedKvSource) -> None:
    app = app_of(source)
    with play(app, (120, 40)) as pilot:
        assert app.ui.block.key == (0, digest(1, 0))
        assert "KV-cache group 0" in screen(app)
        pilot.press(*"]" * 9)
        assert app.ui.block.key == (0, digest(1, 9))
        assert "continued in 3 ways" in screen(app)
        pilot.press("]")
        assert app.ui.block.key == (0, digest(5, 0)), "the one stored last"
        pilot.press("o")
        assert app.ui.block.key == (0, digest(1, 10))
        pilot.press("[")
        assert app.ui.block.key == (0, digest(1, 9))
        assert "block 10 of its prefix, tokens 144 to 159" in screen(app)
        pilot.press("left_square_bracket", *"[" * 9)
        assert app.ui.block.key == (0, digest(1, 0))
        pilot.press("end")
        assert app.ui.cursor == ("CPU", 54)
        pilot.press("home", "up", "down", "up")
        assert app.ui.cursor == ("GPU", 0)
