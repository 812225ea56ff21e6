"""Every key does what the help says, and the help says every key."""

from pathlib import Path

import pytest
from textual import events
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from seqtop.connection import ConnectionState, ControlError
from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.sequence import ExecuteModelRequest, SamplingParams, SequenceStatus
from seqtop.state.fields import COLUMNS
from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.confirm import Confirm
from seqtop.tui.dialogs.help import HelpScreen, grouped
from seqtop.tui.dialogs.sort_chooser import SortChooser
from seqtop.tui.dialogs.submit import SubmitDialog
from seqtop.tui.keymap import GROUPS
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.screens.sequences.filter_bar import FilterBar
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.sequences.table import Rows, Titles
from seqtop.tui.screens.sequences.text_pane import TextPane
from seqtop.wire.messages import RequestArrived, RequestFinished, SequenceUpdate, Step
from tests.support.piloting import play, screen, until
from tests.support.scripted import START, Script, ScriptedSource, scene


def selected(app: SeqtopApp) -> str:
    assert app.ui.selection is not None
    return app.ui.selection[0].request_id


def notices(app: SeqtopApp) -> list[str]:
    return [notice.message for notice in app._notifications]


def test_moving(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        order = app.ui.view.page(0, 100)
        height = app.screen.query_one(Rows).size.height

        def row() -> int:
            return order.index(app.ui.selected)

        assert row() == 0
        for keys, expected in [
            (("down", "j"), 2),
            (("up",), 1),
            (("k",), 0),
            (("up",), 0),
            (("pagedown",), min(height - 1, len(order) - 1)),
            (("pageup",), 0),
            (("ctrl+f",), min(height - 1, len(order) - 1)),
            (("ctrl+b",), 0),
            (("end",), len(order) - 1),
            (("down",), len(order) - 1),
            (("home",), 0),
            (("G",), len(order) - 1),
            (("g",), 0),
        ]:
            await pilot.press(*keys)
            assert row() == expected, keys
            top = app.screen.query_one(Rows).scroll_offset.y
            assert top <= row() < top + height

    play(app, act, (100, 12))


def test_detail(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        detail = app.screen.query_one(Detail)
        for key in ("left_square_bracket", "right_square_bracket", "plus", "minus"):
            assert not detail.display
            await pilot.press(key)
            assert detail.display, key
            await pilot.press("escape")
        await pilot.press("enter")
        assert detail.display
        await pilot.press("enter")
        assert detail.display
        await pilot.press("d")
        assert not detail.display
        await pilot.press("d")
        await pilot.pause()
        assert "Once upon a time" in screen(app)
        await pilot.press("right_square_bracket")
        assert "slots filled" in screen(app)
        await pilot.press("right_square_bracket")
        assert "TTFT 68.0 ms" in screen(app)
        await pilot.press("right_square_bracket")
        assert "logprob" in screen(app)
        await pilot.press("right_square_bracket")
        assert "No history yet." in screen(app)
        await pilot.press("right_square_bracket")
        assert "Once upon a time" in screen(app)
        await pilot.press("left_square_bracket", "left_square_bracket")
        assert "logprob" in screen(app)
        await pilot.press("escape")
        assert not detail.display

    play(app, act, (80, 24))


def test_the_detail_scrolls_once_it_has_the_focus(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter", "tab")
        assert isinstance(app.focused, TextPane)
        await pilot.press("shift+tab")
        assert isinstance(app.focused, Rows)

    play(app, act, (80, 24))


@pytest.mark.parametrize("panes", [(), ("enter",), ("l",)], ids=repr)
def test_the_selected_row_stays_in_sight_in_a_small_terminal(
    app: SeqtopApp, panes: tuple[str, ...]
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("G", *panes)
        await pilot.resize_terminal(40, 12)
        await until(pilot, lambda: "▌" in screen(app))

    play(app, act, (120, 40))


@pytest.mark.parametrize("keys", ["d l", "l d", "d l space", "d l plus plus plus plus"])
@pytest.mark.parametrize("size", [(80, 24), (100, 20)], ids="{0[0]}x{0[1]}".format)
def test_both_panes_leave_the_table_its_rows(
    app: SeqtopApp, keys: str, size: tuple[int, int]
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("G", *keys.split())
        rows, detail = app.screen.query_one(Rows), app.screen.query_one(Detail)
        await until(pilot, lambda: rows.size.height >= 3)
        await pilot.pause()
        assert rows.size.height >= 3
        assert detail.region.bottom <= app.screen.query_one("#latency").region.y
        row = rows.cursor_row
        assert row is not None
        assert rows.scroll_offset.y <= row < rows.scroll_offset.y + rows.size.height
        assert "▌" in screen(app)
        assert selected(app) in screen(app)

    play(app, act, size)


def test_follow(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = app.screen.query_one(Rows)
        name = selected(app)
        await pilot.press("f")
        assert app.ui.following
        source.apply(finish(source, name))
        app.draw()
        await pilot.pause()
        assert selected(app) == name
        index = app.ui.view.index(app.ui.selected)
        assert index is not None
        assert index > 8
        assert rows.scroll_offset.y <= index < rows.scroll_offset.y + rows.size.height
        await pilot.press("f")
        assert not app.ui.following

    play(app, act, (100, 12))


def test_a_row_not_followed_keeps_the_selection_but_not_the_view(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("down", "up")
        name = selected(app)
        source.apply(finish(source, name))
        app.draw()
        await pilot.pause()
        assert selected(app) == name
        assert app.screen.query_one(Rows).scroll_offset.y == 0

    play(app, act, (100, 12))


def test_until_somebody_chooses_the_first_row_is_selected(
    source: ScriptedSource, app: SeqtopApp
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        name = selected(app)
        source.apply(finish(source, name))
        app.draw()
        await pilot.pause()
        assert selected(app) != name
        with app.ui.lock:
            assert app.ui.view.index(app.ui.selected) == 0

    play(app, act, (100, 12))


def finish(source: ScriptedSource, name: str) -> object:
    metrics = source.state.requests[name].metrics
    metrics.finished_time = START + 0.5  # long before the others: to the very end of the list
    return RequestFinished(
        request_id=name,
        time=START + 0.5,
        status=SequenceStatus.FINISHED_STOPPED,
        metrics=metrics,
    )


def test_pause(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("space")
        await pilot.pause()
        assert "‖ PAUSED" in screen(app)
        assert "Step 40, the newest." in screen(app)
        name = selected(app)
        step = app.ui.state.step
        for _ in range(3):
            scene_goes_on(source)
        app.draw()
        await pilot.pause()
        assert "3 behind." in screen(app)
        assert app.ui.state.step == step
        assert "PAUSED" in screen(app)
        await pilot.press("down", "up")
        assert selected(app) == name
        assert f"step {step} " in screen(app)
        await pilot.press("space")
        await pilot.pause()
        assert "PAUSED" not in screen(app)
        assert f"step {step + 3} " in screen(app)

    play(app, act, (100, 30))


def scene_goes_on(source: ScriptedSource) -> None:
    """Another step of an engine that runs the first sequence."""
    state = source.state
    source.apply(
        Step(
            step=state.step + 1,
            start_time=state.time,
            time=state.time + 0.01,
            execute=ExecuteModelRequest([]),
            sequences=[
                SequenceUpdate(
                    seq_id=1,
                    status=SequenceStatus.RUNNING,
                    num_computed_tokens=81,
                    new_token_ids=[1],
                    text_delta="more ",
                )
            ],
            stats=state.stats,
        )
    )


def test_sort(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        keys = ["", *(column.key for column in COLUMNS)]
        for index in range(1, len(keys) + 1):
            await pilot.press("greater_than_sign")
            assert app.ui.view.sort.key == keys[index % len(keys)]
        await pilot.press("less_than_sign")
        assert app.ui.view.sort.key == "text"
        await pilot.press("r")
        assert app.ui.view.sort == Sort("text", descending=True)
        assert "Text▼" in screen(app)
        await pilot.press("r")
        assert "Text▲" in screen(app)

    play(app, act)


def test_sort_chooser(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("s")
        assert isinstance(app.screen, SortChooser)
        await pilot.press("escape")
        assert app.ui.view.sort == Sort()
        await pilot.press("s")
        options = app.screen.query_one(OptionList)
        options.highlighted = options.get_option_index("out")
        await pilot.press("enter")
        await pilot.pause()
        assert app.ui.view.sort == Sort("out", descending=True)
        outs = [len(app.ui.state.sequences[i].output_token_ids) for i in app.ui.view.page(0, 99)]
        assert outs == sorted(outs, reverse=True)
        assert "Out▼" in screen(app)
        await pilot.press("s")
        assert app.screen.query_one(OptionList).highlighted == 9
        await pilot.press("home", "enter")
        assert app.ui.view.sort == Sort()

    play(app, act)


def test_filter(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        total = len(app.ui.view)
        await pilot.press("slash")
        assert isinstance(app.focused, Input)
        await pilot.press(*"status:wait")
        await pilot.pause()
        assert len(app.ui.view) == 4
        assert f"4 of {total}" in screen(app)
        await pilot.press("enter")
        assert isinstance(app.focused, Rows)
        assert len(app.ui.view) == 4
        assert "status:wait" in screen(app)
        await pilot.press("escape")
        await pilot.pause()
        assert len(app.ui.view) == total
        assert not app.screen.query_one(FilterBar).display

    play(app, act)


def test_a_slip_in_the_filter_is_said_and_does_no_harm(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("slash")
        field = app.screen.query_one("#filter-input", Input)

        async def write(text: str) -> None:
            field.value = text
            await pilot.pause()

        await pilot.press(*"p>")
        assert "no field 'p': the help lists them all." in screen(app)
        await write("req-1 promt>5")
        assert "no field 'promt': perhaps prompt." in screen(app)
        await write("re:/req-1[0/")
        assert "regular expression is invalid" in screen(app)
        await pilot.press("enter")  # not while the table shows something else than what it says
        assert app.focused is field
        await write("re:/^req-(8|9)/")
        assert len(app.ui.view) == 2
        assert "broken" not in screen(app)
        await write("nowhere")
        await until(pilot, lambda: "No sequence matches the filter." in screen(app))
        await pilot.press("down")
        assert isinstance(app.focused, Rows)
        await pilot.press("down", "enter", "d", "G")  # nothing to move over
        await pilot.press("slash")
        await pilot.press("escape")
        assert "No sequence matches" not in screen(app)

    play(app, act)


def test_submit(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("n")
        assert isinstance(app.screen, SubmitDialog)
        await pilot.press("enter")
        assert "Type a prompt first." in screen(app)
        await pilot.press(*"Hi [b]x", "tab", *["backspace"] * 2, *"32", "tab")
        await pilot.press(*["backspace"] * 3, *"0.5", "enter")
        await until(pilot, lambda: bool(source.submitted))
        ((prompt, params),) = source.submitted
        assert (prompt, params.max_tokens, params.temperature) == ("Hi [b]x", 32, 0.5)
        await until(pilot, lambda: "Submitted as new-1." in notices(app))
        source.apply(
            RequestArrived(
                request_id="new-1", arrival_time=START + 9, seq_ids=[99], num_prompt_tokens=3
            )
        )
        app.draw()
        assert selected(app) == "new-1"

    play(app, act)


@pytest.mark.parametrize("early", [False, True], ids=["told-first", "arrives-first"])
def test_what_was_submitted_is_in_sight_until_it_runs(
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

    async def act(pilot: Pilot[int]) -> None:
        def is_in_sight() -> bool:
            return any(line[1:].startswith("new-1 ") for line in screen(app).splitlines())

        await pilot.press("G", "n", *"Hi", "enter")
        if not early:
            await until(pilot, lambda: app.ui.pending_selection == "new-1")
            script.arrive("new-1", num_prompt=4)
            app.draw()
        await until(pilot, lambda: selected(app) == "new-1")
        await until(pilot, is_in_sight)
        script.step(prefill={"new-1": 4})
        app.draw()
        assert app.ui.view.index(app.ui.selected) == 12
        await until(pilot, is_in_sight)
        script.step(stop={"runs-0": SequenceStatus.FINISHED_STOPPED})
        app.draw()
        await pilot.pause()
        assert is_in_sight()
        await pilot.press("G")
        await until(pilot, lambda: not is_in_sight())

    play(app, act, (80, 24))


@pytest.mark.parametrize(("tokens", "temperature"), [("0", "1"), ("", "1"), ("9", "-1")])
def test_what_cannot_be_sampled_is_not_submitted(
    source: ScriptedSource, app: SeqtopApp, tokens: str, temperature: str
) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("n")
        await pilot.press(*"Hi", "tab", *["backspace"] * 2, *tokens, "tab")
        await pilot.press(*["backspace"] * 3, *temperature, "enter")
        await pilot.pause()
        assert "Invalid value" in screen(app)
        await pilot.press("escape")
        assert isinstance(app.screen, SequencesScreen)
        assert not source.submitted

    play(app, act)


def test_an_engine_that_refuses_is_quoted(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        source.error = ControlError("the queue is \x1b[31m[b]full[/b]")
        await pilot.press("n")
        await pilot.press(*"Hi", "enter")
        await until(pilot, lambda: "Not submitted: the queue is ␛[31m[b]full[/b]." in notices(app))
        await pilot.press("x")
        await pilot.press("y")
        await until(pilot, lambda: "[b]full[/b]" in screen(app))

    play(app, act)


def test_abort(source: ScriptedSource, app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("x")
        assert isinstance(app.screen, Confirm)
        assert "Abort req-1?" in screen(app)
        await pilot.press("n")
        assert isinstance(app.screen, SequencesScreen)
        await pilot.press("x")
        await pilot.press("escape")
        assert not source.aborted
        await pilot.press("x")
        await pilot.press("y")
        await until(pilot, lambda: source.aborted == ["req-1"])
        await until(pilot, lambda: "Aborted req-1." in notices(app))
        await pilot.press("G", "x")
        assert any("has already finished" in notice for notice in notices(app))

    play(app, act)


def test_an_engine_that_is_only_watched_says_so() -> None:
    source = ScriptedSource()
    scene(source, control=False)
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "n New" not in screen(app) and "space Pause" in screen(app))
        assert "x Abort" not in screen(app)
        await pilot.press("n", "x")
        assert isinstance(app.screen, SequencesScreen)
        assert notices(app) == [
            "Control is disabled (start the engine with --control).",
            "Control is disabled (start the engine with --control).",
        ]
        source.connect(ConnectionState.LOST)
        await pilot.press("n")
        assert "it is not connected" in notices(app)[-1]

    play(app, act)


def test_a_recording_has_no_engine_to_control() -> None:
    source = ScriptedSource(history=MemoryStore())
    scene(source, hostile="")
    app = SeqtopApp(Playback(source.history, "run.seqtop", paused=True), clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("right", "n", "x")
        assert notices(app)[:1] == ["Cannot submit prompts to a recording."]
        assert "n New" not in screen(app)
        assert "x Abort" not in screen(app)

    play(app, act)


def test_mouse(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.click(Rows, offset=(5, 2))
        assert selected(app) == "req-3"
        await pilot.click(Rows, offset=(5, 18))  # below the last row
        assert selected(app) == "req-3"
        at = screen(app).splitlines()[4].index("Out")
        await pilot.click(Titles, offset=(at, 0))
        assert app.ui.view.sort == Sort("out", descending=True)
        await pilot.click(Titles, offset=(at, 0))
        assert app.ui.view.sort == Sort("out")
        await pilot.press("d")
        await pilot.click("DetailTabs", offset=(10, 0))
        assert "slots filled" in screen(app)

    play(app, act, (100, 29))


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_quit(app: SeqtopApp, key: str) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit

    play(app, act)
    assert app.return_code == 0


def test_there_is_no_shell_to_go_back_to_without_a_terminal(app: SeqtopApp) -> None:
    """With one there is: see `test_terminal_restored.py`."""

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+z")
        await pilot.press("d")
        assert app.is_running

    play(app, act)


def test_help_lists_every_key_and_nothing_else(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        bound = {
            key: active.binding.tooltip or active.binding.description
            for key, active in app.screen.active_bindings.items()
        }
        await pilot.press("question_mark")
        assert isinstance(app.screen, HelpScreen)
        listed = {
            binding.key: description
            for entries in app.screen._listed.values()
            for bindings, description in entries
            for binding in bindings
        }
        assert listed == bound
        assert set(app.screen._listed) == set(GROUPS.values())
        text = str(app.screen.query_one("#help-content").render())
        for description in bound.values():
            assert description
            assert description in text
        await pilot.press("escape")
        assert isinstance(app.screen, SequencesScreen)

    play(app, act, (100, 80))


def test_the_palette_has_the_actions(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("ctrl+p")
        await pilot.press(*"nothing", "escape", "escape")
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        for active in app.screen.active_bindings.values():
            if active.binding.id and active.binding.action != "quit":
                assert (active.binding.tooltip or active.binding.description) in commands
        await commands["Reverse the order"].callback()
        assert app.ui.view.sort.descending
        await commands["Freeze the display, or resume"].callback()
        assert app.ui.paused

    play(app, act)


def test_no_key_leaves_a_broken_screen(
    app: SeqtopApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # one of the keys writes a file

    async def act(pilot: Pilot[int]) -> None:
        keys = [
            key
            for key, active in app.screen.active_bindings.items()
            if active.binding.action not in {"quit", "app.quit"}
            and "go_to(" not in active.binding.action
        ]
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
            assert screen(app).strip()
            await pilot.press("escape")
            assert isinstance(app.screen, SequencesScreen), key

    play(app, act, (80, 24))


def test_grouped_keeps_all_keys_of_an_action_together() -> None:
    bindings = [
        Binding("a", "x", "Do", id="move.a"),
        Binding("b", "x", "Do", id="move.a"),
        Binding("c", "y", "Other"),
    ]
    listed = grouped(bindings)
    assert [([b.key for b in keys], text) for keys, text in listed["Move"]] == [(["a", "b"], "Do")]
    assert [text for _, text in listed["seqtop"]] == ["Other"]


def test_the_text_keeps_to_its_end_until_one_scrolls_away() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("long", "A long prompt. " * 100, pieces=["word "])
    script.step(prefill={"long": 40})
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        story = app.screen.query_one(TextPane)

        async def on(steps: int) -> None:
            for _ in range(steps):
                script.step()
            app.draw()
            await pilot.pause()

        assert story.max_scroll_y > 0
        assert story.scroll_y == story.max_scroll_y
        await on(60)
        assert story.scroll_y == story.max_scroll_y
        assert "word word" in screen(app)
        await pilot.press("tab", "home")
        top = story.scroll_y
        await on(60)
        assert story.scroll_y == top < story.max_scroll_y
        await pilot.press("end")
        await on(60)
        assert story.scroll_y == story.max_scroll_y
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert story.scroll_y == story.max_scroll_y

    play(app, act, (80, 24))


def test_a_pause_does_not_scroll_the_table(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        rows = app.screen.query_one(Rows)
        rows.scroll_to(y=rows.max_scroll_y, animate=False)
        await pilot.pause()
        top = rows.scroll_offset.y
        assert top > 0
        await pilot.press("space")
        await pilot.pause()
        assert rows.scroll_offset.y == top

    play(app, act, (80, 12))


def test_keys_pressed_before_there_is_a_screen_are_not_lost() -> None:
    class Hasty(SeqtopApp):
        def on_load(self) -> None:
            for _ in range(2):
                self.post_message(events.Key("down", None))

    source = ScriptedSource()
    scene(source)
    app = Hasty(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.ui.view.index(app.ui.selected) == 2)

    play(app, act)
