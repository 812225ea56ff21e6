"""The dialog that submits a prompt."""

import pytest
from textual import events

from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.submit import SubmitDialog
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire.messages import RequestArrived
from tests.support.piloting import notices, play, rows, screen, selected, until
from tests.support.scripted import Script, ScriptedSource
from tests.support.simulated_engine import START


def test_submit(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("n")
        assert isinstance(app.screen, SubmitDialog)
        pilot.press("enter")
        assert "Type a prompt first." in screen(app)
        pilot.press(*"Hi [b]x", "tab", *["backspace"] * 2, *"32", "tab")
        pilot.press(*["backspace"] * 3, *"0.5", "enter")
        until(pilot, lambda: bool(source.submitted))
        ((prompt, params),) = source.submitted
        assert (prompt, params.max_tokens, params.temperature) == ("Hi [b]x", 32, 0.5)
        until(pilot, lambda: "Submitted as new-1." in notices(app))
        source.apply(
            RequestArrived(
                request_id="new-1", arrival_time=START + 9, seq_ids=[99], num_prompt_tokens=3
            )
        )
        app.draw()
        assert selected(app) == "new-1"


def test_all_pasted_lines_are_submitted(source: ScriptedSource, app: SeqtopApp) -> None:
    with play(app) as pilot:
        pilot.press("n")
        app.post_message(events.Paste("first\nsecond\n"))
        pilot.pause()
        pilot.press("ctrl+j", *"third", "enter")
        until(pilot, lambda: bool(source.submitted))
        ((prompt, _),) = source.submitted
        assert prompt == "first\nsecond\n\nthird"


@pytest.mark.parametrize("early", [False, True], ids=["answered-first", "arrives-first"])
def test_a_submitted_request_is_in_sight_until_it_runs(
    monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    source = ScriptedSource()
    script = Script(source)
    for index in range(12):
        script.arrive(f"runs-{index}", num_prompt=4)
    script.step(prefill={f"runs-{index}": 4 for index in range(12)})
    for index in range(30):
        script.arrive(f"waits-{index}", num_prompt=4)
    app = SeqtopApp(source, clock=lambda: 0.0)
    submit = source.submit

    def answer_late(prompt: str, params: SamplingParams) -> str:
        script.arrive("new-1", num_prompt=4)
        app.call_from_thread(app.draw)
        return submit(prompt, params)

    if early:
        monkeypatch.setattr(source, "submit", answer_late)

    with play(app, (80, 24)) as pilot:

        def is_in_sight() -> bool:
            return any(line[1:].startswith("new-1 ") for line in rows(app))

        pilot.press("end", "n", *"Hi", "enter")
        if not early:
            until(pilot, lambda: app.ui.cursor.pending == "new-1")
            script.arrive("new-1", num_prompt=4)
            app.draw()
        until(pilot, lambda: selected(app) == "new-1")
        until(pilot, is_in_sight)
        script.step(prefill={"new-1": 4})
        app.draw()
        assert app.ui.view.index(app.ui.cursor.seq_id) == 12
        until(pilot, is_in_sight)
        script.step(stop={"runs-0": SequenceStatus.FINISHED_STOPPED})
        pilot.draw()
        assert is_in_sight()
        pilot.press("end")
        until(pilot, lambda: not is_in_sight())


def test_parameters_that_cannot_be_are_not_submitted(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    with play(app) as pilot:
        for tokens, temperature in (("0", "1"), ("", "1"), ("9", "-1")):
            pilot.press("n")
            pilot.press(*"Hi", "tab", *["backspace"] * 2, *tokens, "tab")
            pilot.press(*["backspace"] * 3, *temperature, "enter")
            assert "Invalid value" in screen(app)
            pilot.press("escape")
            assert isinstance(app.screen, SequencesScreen)
            assert not source.submitted
