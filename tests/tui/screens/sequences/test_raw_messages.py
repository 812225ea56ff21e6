"""The raw messages of a sequence."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.raw_messages import RawMessages
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource, scene


def test_raw_messages_come_from_the_record() -> None:
    source = ScriptedSource()
    scene(source)
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 40)) as pilot:
        pilot.press("enter", "O")
        text = screen(app)
        assert "Update of step 40" in text
        assert "'num_computed_tokens': 80" in text
        pilot.press("left", "left")
        assert "Update of step 38" in screen(app)
        pilot.press("tab")
        assert isinstance(app.focused, RawMessages)
