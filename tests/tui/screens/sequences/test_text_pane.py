"""The text of a sequence: its end stays in sight, and redacted text is named."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.text_pane import TextPane
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource, engine_info


def test_the_text_keeps_to_its_end_until_one_scrolls_away() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("long", "A long prompt. " * 100, pieces=["word "])
    script.step(prefill={"long": 40})
    app = SeqtopApp(source)
    with play(app, (80, 24)) as pilot:
        pilot.press("enter")
        story = app.screen.query_one(TextPane)

        def on(steps: int) -> None:
            for _ in range(steps):
                script.step()
            pilot.draw()

        assert story.max_scroll_y > 0
        assert story.scroll_y == story.max_scroll_y
        on(60)
        assert story.scroll_y == story.max_scroll_y
        assert "word word" in screen(app)
        pilot.press("tab", "home")
        top = story.scroll_y
        on(60)
        assert story.scroll_y == top < story.max_scroll_y
        pilot.press("end")
        on(60)
        assert story.scroll_y == story.max_scroll_y
        pilot.resize_terminal(60, 20)
        assert story.scroll_y == story.max_scroll_y


def test_a_text_opens_at_its_end_after_one_that_fitted() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("short", "Hi.", pieces=["word "])
    script.arrive("long", "A long prompt. " * 100, pieces=["word "])
    script.step(prefill={"short": 4, "long": 40})
    app = SeqtopApp(source)
    with play(app, (80, 24)) as pilot:
        pilot.press("enter")
        story = app.screen.query_one(TextPane)
        assert story.max_scroll_y == 0
        pilot.press("down")
        pilot.draw()
        assert story.max_scroll_y > 0
        assert story.scroll_y == story.max_scroll_y


def test_redacted_text_is_said_to_be() -> None:
    source = ScriptedSource(engine_info(redacted=True))
    script = Script(source, redacted=True)
    script.arrive("secret", prompt="", pieces=[""])
    script.step(prefill={"secret": 40})
    app = SeqtopApp(source)
    with play(app) as pilot:
        pilot.press("enter")
        assert "Redacted: this engine does not publish its texts." in screen(app)
        assert " redacted" in screen(app)  # where its text would be, in the table
