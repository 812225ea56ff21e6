"""The raw messages of a sequence."""

from textual.pilot import Pilot

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.raw_messages import RawMessages
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource, scene


def test_raw_messages_come_from_the_record() -> None:
    source = ScriptedSource()
    scene(source)
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "left_square_bracket")
        await pilot.pause()
        text = screen(app)
        assert "Update of step 40" in text
        assert "'num_computed_tokens': 80" in text
        await pilot.press("left", "left")
        await pilot.pause()
        assert "Update of step 38" in screen(app)
        await pilot.press("tab")
        assert isinstance(app.focused, RawMessages)

    play(app, act, (100, 40))
