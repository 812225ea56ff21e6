"""The app: its engines, their screens, and the keys that work on all screens.

Screens and dialogs other than the first are imported when they are opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import SystemCommand
from textual.binding import Binding
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen, Screen
from textual.widget import AwaitMount

from seqtop.history.event_index import EventKind
from seqtop.history.file_store import FileStore
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.state.freeze import freeze
from seqtop.state.ordering import Sort
from seqtop.state.slo import FIGURES, Slo
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState, ControlError
from seqtop.tui import seek
from seqtop.tui.base_app import BaseApp
from seqtop.tui.checks import sentence
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import APP_KEYS, GROUPS, Notes, group_of, unlisted
from seqtop.tui.navigation import go_to_finding, jump
from seqtop.tui.refresher import NEWS_PER_SECOND, Refresher
from seqtop.tui.screens import FLEET, TABS, blocks, sequences
from seqtop.tui.screens.base import TabbedScreen
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.settings import (
    DEFAULTS,
    SavedState,
    Settings,
    SettingsChanged,
    parse_conditions,
)
from seqtop.tui.sharing import moment_of, share
from seqtop.tui.source import Engine, FoundEngines, Source
from seqtop.tui.tour import Tour
from seqtop.tui.ui_state import Engines, UiState

if TYPE_CHECKING:
    from seqtop.alerts.watch import ConditionWatch
    from seqtop.checks.background import BackgroundChecker
    from seqtop.history.replay import Replay, ReplayThread
    from seqtop.state.compare import Rate
    from seqtop.tui.dialogs.seek_prompt import SeekTarget
    from seqtop.tui.dialogs.submit import Submission
    from seqtop.tui.screens.checks.screen import ChecksScreen

TICK_SECONDS = 0.5
"""Seconds between two updates of times in whole seconds, and of the engines not on display."""
_SAVING_SECONDS = 3_600.0
"""Seconds after which the notice of a history that is being saved goes away by itself."""


NOT_HERE = {
    "filter": "Nothing to filter here: press 1, then / filters the sequences and the timeline.",
    "sort": "This screen has one order: press 1, then s sorts the sequences.",
    "table": "That is about the table of sequences: press 1, then this key again.",
}
"""Sentences on the keys of the table of sequences, pressed on another screen."""


def _key_of(tab: Tab) -> Binding:
    title = "All engines" if tab is FLEET else tab.title
    return Binding(tab.key, f"go_to({tab.name!r})", title, show=False, id=f"screen.{tab.name}")


TIME_KEYS = [
    # The comma first: in the block map, the arrows move the cursor.
    Binding("comma,left", "step(-1)", "Back", id="time.back", tooltip="One step back"),
    *(
        unlisted(key, action, description, f"time.{name}")
        for key, action, description, name in (
            ("full_stop,right", "step(1)", "One step forward", "on"),
            ("left_curly_bracket,shift+left", "step(-10)", "Ten steps back", "far-back"),
            ("right_curly_bracket,shift+right", "step(10)", "Ten steps forward", "far-on"),
            ("p", "jump('preemption', -1)", "Back to the last preemption", "preemption-before"),
            ("P", "jump('preemption', 1)", "Forward to the next preemption", "preemption-after"),
            ("e", "jump('finish', -1)", "Back to the last end of a request", "finish-before"),
            ("E", "jump('finish', 1)", "Forward to the next end of a request", "finish-after"),
            ("w", "jump('swap', -1)", "Back to the last swap", "swap-before"),
            ("W", "jump('swap', 1)", "Forward to the next swap", "swap-after"),
            ("left_square_bracket", "change(-1)", "Back to the last drop or spike", "drop-before"),
            ("right_square_bracket", "change(1)", "Forward to the next one", "drop-after"),
            ("ctrl+left", "scrub(-1)", "A twentieth of the history back", "scrub-back"),
            ("ctrl+right", "scrub(1)", "A twentieth of the history forward", "scrub-on"),
            ("colon", "seek", "Go to a step or a time", "step"),
            ("semicolon", "seek_condition", "Go to where a condition holds", "condition"),
            ("v", "check(-1)", "Back to the last failed check", "check-before"),
            ("V", "check(1)", "Forward to the next failed check", "check-after"),
            ("0", "oldest", "Go to the oldest moment", "oldest"),
            ("L", "newest", "Back to now; in a recording, to its end", "newest"),
        )
    ),
    Binding(
        "u",
        "repeat_seek(-1)",
        "Match before",
        id="time.match-before",
        tooltip="Back to the last match of the condition",
    ),
    Binding(
        "U",
        "repeat_seek(1)",
        "Next match",
        id="time.match-after",
        tooltip="Forward to the next match of it",
    ),
]
"""Keys that move through the history. All but `L` pause, if they find a position."""


class SeqtopApp(BaseApp):
    """Shows `sources`, engines or recordings. The caller starts and closes them.

    Args:
        title: Title in the header until the engine has sent its name.
        clock: Returns this machine's time in seconds, for the age of a lost connection.
        settings: The settings to start with.
        saved_state: Store for the settings that the user chooses.
        problems: Sentences on invalid settings, shown at the start.
        has_tour: Whether the guided tour of the demo begins.
        offers_tour: Whether a key begins it.
        needs_engine: Whether the app ends if the engine stops before it sent a state.
        found: Further engines, as a register lists them.
    """

    DEFAULT_MODE = sequences.TAB.name
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        *map(_key_of, (*TABS, FLEET)),
        Binding("n", "submit", "New", id="engine.submit", tooltip="Submit a prompt"),
        Binding("x,f9", "abort", "Abort", id="engine.abort", tooltip="Abort the selected request"),
        Binding(
            "space", "pause", "Pause", id="time.pause", tooltip="Freeze the display, or resume"
        ),
        *TIME_KEYS,
        Binding("A", "mark_moment", "Mark this moment as A", show=False, id="time.mark"),
        Binding("B", "compare", "Compare with A, or with now", show=False, id="time.compare"),
        Binding("D", "slo", "Limits for latencies (SLO)", show=False, id="look.slo"),
        Binding("I", "what_if", "What if: other settings", show=False, id="time.what-if"),
        Binding("b", "go_to_block", "Go to a block", show=False, id="screen.block"),
        unlisted("slash,f4", "not_here('filter')", "Filter: on the sequences", "find.filter-there"),
        unlisted("s,f6", "not_here('sort')", "Sort: on the sequences", "find.sort-there"),
        unlisted(
            "c,f2,t,f5,Q,i,y,r", "not_here('table')", "Keys of the sequences", "find.table-there"
        ),
        Binding(
            "N",
            "next_stop",
            "Tour",
            id="screen.tour",
            tooltip="Begin the tour of the demo, or go to its next stop",
        ),
        Binding("R", "record", "Record, or save the past", show=False, id="engine.record"),
        Binding(
            "S", "share", "Share this moment: recording, picture, text", show=False, id="app.share"
        ),
        *APP_KEYS,
    ]

    def __init__(
        self,
        *sources: Source,
        title: str = "seqtop",
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULTS,
        saved_state: SavedState | None = None,
        problems: Sequence[str] = (),
        has_tour: bool = False,
        offers_tour: bool = False,
        needs_engine: bool = False,
        found: FoundEngines | None = None,
    ) -> None:
        super().__init__(theme_name=settings.theme, problems=problems)
        self.title = title
        self.engines = Engines(sources, clock, settings)
        self.exit_message: str | None = None
        """A sentence to print after the app has ended."""
        self.shared: list[str] = []
        """Commands that open the shared moments."""
        self._replays: list[ReplayThread] = []
        self._marked_moments: dict[int, tuple[EngineState, dict[str, Rate]]] = {}
        """By engine, a copy of the state and the rates at the moment that the user has marked."""
        self._refresher = Refresher(
            self.draw, self.call_next, lambda: self.ui, lambda: self.is_terminal_behind
        )
        self._watches: list[tuple[UiState, ConditionWatch]] = []
        """The conditions of which the user is told, for each engine."""
        self._conditions = settings.on or ()
        for ui in self.engines.all:
            self._connect(ui)
        self._found = found
        self._saved_state = saved_state
        self.tour = Tour(self.ui) if has_tour else None
        """The guided tour of the demo; `None` without one, and after its end."""
        self._offers_tour = offers_tour
        self._needs_engine = needs_engine
        self._has_fleet = len(self.engines) > 1 or found is not None
        self._tabs = (*TABS, FLEET) if self._has_fleet else TABS

    @property
    def ui(self) -> UiState:
        """The state of the display of the selected engine."""
        return self.engines.ui

    def get_default_screen(self) -> Screen[None]:
        """Returns the first screen: as a mode, it would make Textual parse the styles twice."""
        return self._screen(sequences.TAB, self.engines.all[0])

    def _screen(self, tab: Tab, ui: UiState) -> EngineScreen:
        return EngineScreen.of(tab)(ui, title=self.title, tabs=self._tabs)

    def _fleet_screen(self) -> Screen[None]:
        from seqtop.tui.screens.fleet.screen import FleetScreen

        return FleetScreen(self.engines, self._tabs)

    def _connect(self, ui: UiState) -> None:
        """Draws what the engine tells, and watches its conditions."""
        ui.request_frame = partial(self._refresher.wake, ui)
        ui.show_news = partial(self._refresher.wake, ui, rate=NEWS_PER_SECOND)
        if self._conditions:
            self._watch(ui)

    def _add_modes(self) -> None:
        for index in range(len(self.engines)):
            self._add_modes_of(index)
        if self._has_fleet:
            self.add_mode(FLEET.name, self._fleet_screen)

    def _add_modes_of(self, index: int) -> None:
        for tab in TABS:
            self.add_mode(
                _mode(tab.name, index), partial(self._screen, tab, self.engines.all[index])
            )

    def _add_found(self, found: FoundEngines) -> None:
        """Adds the engines that a register lists now, and says if it cannot be read."""
        for source in found.take_new():
            self._connect(self.engines.add(source))
            self._add_modes_of(len(self.engines) - 1)
        if problem := found.take_problem():
            self._show_notice(f"{problem}.", severity="warning")

    def switch_mode(self, mode: str) -> AwaitMount:
        """Switches to a screen of the selected engine, by the name of its tab."""
        self.engines.subscribe()
        return super().switch_mode(
            mode if mode == FLEET.name else _mode(mode, self.engines.shown_index)
        )

    def on_mount(self) -> None:
        self._add_modes()
        self._refresher.start()
        self.set_interval(TICK_SECONDS, self._tick)
        if self.tour is not None:
            self.call_after_refresh(self._show_stop)
        if self._has_fleet:
            self.switch_mode(FLEET.name)
        self.theme_changed_signal.subscribe(self, lambda theme: self.remember(theme=theme.name))

    def on_key(self, event: events.Key) -> None:
        with self.ui.lock:
            if self.ui.condition_finder.cancel() and event.key == "escape":
                event.prevent_default()  # it only ends the search
                self.ui.time_travel.key_message = ""
                self._refresher.wake()
                return
        if self.ui.time_travel.key_message:
            self.ui.time_travel.key_message = ""
            self._refresher.wake()

    def on_settings_changed(self, message: SettingsChanged) -> None:
        self.remember(**message.changes)

    def remember(self, **changes: object) -> None:
        """Saves settings that the user has chosen, for the next run."""
        if self._saved_state is not None and (problem := self._saved_state.save(**changes)):
            self._show_notice(problem, severity="warning")

    def draw(self, *, redraw: bool = False) -> None:
        """Draws the changes since the last call, or everything."""
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, ModalScreen):
            return  # what a dialog covers is drawn when it closes
        with self.ui.lock:
            self.ui.update(redraw=redraw)
            changes = self.ui.take_changes()
            if isinstance(screen, EngineScreen):
                screen.show(changes)
            late = self.ui.latencies.take_alerts()
        if late:
            self._show_notice(slo_message(late), severity="warning")

    def _watch(self, ui: UiState) -> None:
        """Watches the conditions of an engine. A recording tells nobody anything new."""
        from seqtop.alerts.watch import ConditionWatch

        for condition in parse_conditions(self._conditions) if ui.engine is not None else ():
            watch = ConditionWatch(condition)
            ui.time_travel.add_listener(watch.observe)
            self._watches.append((ui, watch))

    def _tell_conditions(self) -> None:
        """Tells the user which conditions have begun to hold, and which have ended."""
        for ui, watch in self._watches:
            with ui.lock:
                changes = [*watch.poll()]
                name = ui.name
            for change in changes:
                text = safe_line(f"{name}: {watch.sentence(change)}.")
                self._show_notice(text, severity="warning")
                if change.has_begun:
                    self.bell()
                    self._notify_desktop(text)

    def _notify_desktop(self, text: str) -> None:
        """Asks the terminal for a notification of the desktop.

        OSC 9 is iTerm2's sequence, which most terminals know or ignore.
        """
        if not self.is_headless and self._driver is not None:
            self._driver.write(f"\x1b]9;{text}\x07")

    def _tick(self) -> None:
        """Updates times by this machine's clock, and the engines that are not on display."""
        if self._found is not None:
            self._add_found(self._found)
        if self._watches:
            self._tell_conditions()
        if self.tour is not None:
            with self.ui.lock:
                found = self.tour.advance()
            if found:
                self._show_stop()
        state, has_info = self.ui.source.connection.state, self.ui.newest.info is not None
        if self._needs_engine and state is ConnectionState.STOPPED and not has_info:
            self.exit()
        if state is ConnectionState.LOST or not has_info:
            self._refresher.wake()
        elif self.ui.time_travel.take_news():
            self._refresher.wake(rate=1)
        if self._has_fleet:
            from seqtop.tui.screens.fleet.screen import FleetScreen

            self.engines.subscribe()
            screen = self.screen_stack[-1] if self.screen_stack else None
            if isinstance(screen, FleetScreen):  # it is not covered by a dialog
                screen.show()
            else:
                self.engines.update()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        listed = {"quit"}  # Textual has a command for it
        groups = list(GROUPS.values())
        actives = screen.active_bindings.values()
        for active in sorted(actives, key=lambda active: groups.index(group_of(active.binding))):
            binding, namespace = active.binding, active.node
            if binding.id is not None and binding.action not in listed:
                listed.add(binding.action)
                yield SystemCommand(
                    binding.tooltip or binding.description,
                    f"{group_of(binding)} · {self.get_key_display(binding)}",
                    lambda action=binding.action, node=namespace: self.run_action(action, node),
                )
        if self.current_mode != FLEET.name:
            for field in FIELDS.values():
                title = f"Sort by {field.title}"
                yield SystemCommand(title, field.help, partial(self._show_by, field.key), False)
        for command in super().get_system_commands(screen):
            if command.title != "Keys":  # `?` is the help
                yield command

    def _show_by(self, key: str) -> None:
        """Shows the table of sequences, sorted by a column."""
        from seqtop.tui.screens.sequences.screen import SequencesScreen

        self.action_go_to(sequences.TAB.name)
        if isinstance(self.screen, SequencesScreen):
            self.screen.sort_by(Sort(key, FIELDS[key].descending))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disables the fleet screen for one engine, and actions on one engine while it is open."""
        if action == "next_stop":
            return self.tour is not None or self._offers_tour
        # Other actions are `BaseApp`'s.
        is_about_one = f"action_{action}" in SeqtopApp.__dict__ and action != "go_to"
        return not is_about_one or self.current_mode != FLEET.name

    def help_notes(self) -> Mapping[str, Notes]:
        words = self.screen.WORDS if isinstance(self.screen, TabbedScreen) else ()
        if self.current_mode == FLEET.name:
            from seqtop.tui.screens.fleet.engine_filter import HELP_NOTES

            return {"On this screen": words, **HELP_NOTES}

        from seqtop.tui.dialogs.help import notes_about

        with self.ui.lock:
            return notes_about(self.ui.state.info, words, self.ui.engine)

    def action_go_to(self, name: str) -> None:
        if name == FLEET.name and not self._has_fleet:
            self._show_notice(
                "There is one engine: attach to several running engines to compare them."
            )
        else:
            super().action_go_to(name)

    def action_next_stop(self) -> None:
        with self.ui.lock:
            if self.tour is None:
                self.tour = Tour(self.ui)
            elif not self.tour.go_on():
                self.tour = None
        self._show_stop()

    def _show_stop(self) -> None:
        """Opens the screen of the stop on display."""
        from seqtop.tui.screens.sequences.screen import SequencesScreen

        if self.tour is not None:
            if self.tour.stop.screen != self.current_mode:
                self.switch_mode(self.tour.stop.screen)
            if self.tour.stop.pane and isinstance(self.screen, SequencesScreen):
                if self.tour.stop.pane == "latency":
                    self.screen.show_latency()
                else:
                    self.screen.action_open_detail()
        self.refresh_bindings()
        self.draw(redraw=True)

    def action_pause(self) -> None:
        with self.ui.lock:
            if self.ui.paused:
                self.ui.time_travel.resume()
            else:
                self.ui.time_travel.pause()
        self.draw()

    def action_step(self, count: int) -> None:
        end = "newest moment so far" if count > 0 else "oldest moment in the history"
        steps = seek.by_steps(count)
        with self.ui.lock:
            if count == -1 and self.ui.restarts.recent and not self.ui.time_travel.has_position:
                steps = seek.before_restart
        self._go(steps, f"This is the {end}.")

    def action_jump(self, kind: str, direction: int) -> None:
        what = {"preemption": "preemption", "finish": "request's end", "swap": "swap"}[kind]
        where = "after" if direction > 0 else "before"
        with self.ui.lock:
            jump(
                self.ui,
                seek.to_kind(EventKind[kind.upper()], direction),
                f"No {what} {where} this moment in the history.",
            )
        self.draw()

    def action_change(self, direction: int) -> None:
        from seqtop.tui.output_changes import go_to_change

        with self.ui.lock:
            go_to_change(self.ui, direction)
        self.draw()

    def action_oldest(self) -> None:
        self._go(seek.to_end(-1), "This is the oldest moment in the history.")

    def action_newest(self) -> None:
        if self.ui.engine is None:
            self._go(seek.to_end(1), "This is the end of the recording.")
        elif self.ui.paused:
            self.action_pause()

    def action_scrub(self, direction: int) -> None:
        end = "newest moment so far" if direction > 0 else "oldest moment in the history"
        self._go(seek.by_share(direction / 20), f"This is the {end}.")

    def action_seek(self) -> None:
        from seqtop.tui.dialogs.seek_prompt import SeekPrompt

        def go(wanted: SeekTarget | None) -> None:
            if wanted is None:
                return
            message = ""

            def find(timeline: Timeline, position: int) -> int | None:
                nonlocal message
                target, message = wanted.find(timeline, position)
                return target

            self._go(find, "")
            if message:
                self.ui.time_travel.seek_message = message
                self.draw()

        self.push_screen(SeekPrompt(), go)

    def action_seek_condition(self) -> None:
        from seqtop.tui.dialogs.condition_prompt import ConditionPrompt

        def go(condition: str | None) -> None:
            if condition is not None:
                self.ui.condition_finder.condition = condition
                # From the newest moment there is no way but back.
                self.action_repeat_seek(1 if self.ui.paused else -1)

        self.push_screen(ConditionPrompt(self.ui.condition_finder.condition), go)

    def action_repeat_seek(self, direction: int) -> None:
        if not self.ui.condition_finder.condition:
            self.action_seek_condition()
            return
        with self.ui.lock:
            self.ui.condition_finder.start(direction)
        self.draw()

    def start_checking(self) -> BackgroundChecker:
        """Checks the history from now on."""
        checker = self.ui.checks.checker
        if checker is None:
            checker = self.ui.checks.start()
            self._read_in_background(checker.replay)
        return checker

    def _read_in_background(self, replay: Replay) -> None:
        from seqtop.history.replay import ReplayThread

        self._replays.append(ReplayThread(replay, self.ui.request_frame))
        self._replays[-1].start()

    def on_blocks_screen_misses_opened(self) -> None:
        if self.ui.misses.reader is None:
            self._read_in_background(self.ui.misses.start().replay)

    def on_checks_screen_opened(self) -> None:
        self.start_checking()

    def on_checks_screen_chosen(self, message: ChecksScreen.Chosen) -> None:
        with self.ui.lock:
            go_to_finding(self.ui, message.located, sentence([message.located]))
        self.draw()
        self.switch_mode(sequences.TAB.name)

    def action_check(self, direction: int) -> None:
        checker = self.start_checking()
        with self.ui.lock:
            find = checker.next if direction > 0 else checker.previous
            findings = find(self.ui.time_travel.position)
            if findings:
                go_to_finding(self.ui, findings[0], sentence(findings))
        if findings:
            self.draw()
            return
        so_far = " so far; checking continues" if checker.replay.is_behind else ""
        if checker.replay.problem:
            so_far += f"; {checker.replay.problem}"
        where = "after" if direction > 0 else "before"
        steps = fmt.plural(checker.num_steps, "step")
        self._show_notice(f"No failed check {where} this moment: {steps} checked{so_far}.")

    def action_go_to_block(self) -> None:
        from seqtop.tui.dialogs.prompts import BlockPrompt

        def go(block: int | None) -> None:
            if block is None:
                return
            with self.ui.lock:
                self.ui.blocks.block = max(0, min(block, num_blocks - 1))
                self.ui.misses.are_shown = False
            if not 0 <= block < num_blocks:
                last = fmt.count(num_blocks - 1)
                self._show_notice(
                    f"There is no block {block}; the last is {last}.", severity="warning"
                )
            if self.current_mode != blocks.TAB.name:
                self.switch_mode(blocks.TAB.name)
            self.draw(redraw=True)

        with self.ui.lock:
            info = self.ui.state.info
            num_blocks = info.num_gpu_blocks if info else 0
        self.push_screen(BlockPrompt(num_blocks), go)

    def _go(self, wanted: seek.Seek, otherwise: str) -> None:
        with self.ui.lock:
            self.ui.time_travel.go(wanted, otherwise)
        self.draw()

    def action_mark_moment(self) -> None:
        from seqtop.tui.rates import rates_at

        with self.ui.lock:
            state = freeze(self.ui.state)
            self._marked_moments[self.engines.shown_index] = state, rates_at(self.ui, state)
            step = state.step
        where = f"step {fmt.count(step)}" if step >= 0 else "the moment before the first step"
        self._show_notice(f"A is {where}. Go to another moment and press B to compare.")

    def action_compare(self) -> None:
        from seqtop.state.compare import compare, describe
        from seqtop.tui.dialogs.prompts import ComparisonDialog
        from seqtop.tui.rates import rates_at

        ui = self.ui
        with ui.lock:
            other = self._marked_moments.get(self.engines.shown_index)
            if other is None and ui.state is not ui.newest:
                other = ui.newest, rates_at(ui, ui.newest)
            lines = []
            if other is not None:
                here = ui.state, rates_at(ui, ui.state)
                a, b = sorted((here, other), key=lambda moment: moment[0].time)
                rates = [(name, rate, b[1][name]) for name, rate in a[1].items()]
                lines = describe(compare(a[0], b[0]), rates)
        if not lines:
            self._show_notice("Go to a past moment, and B compares it with now; A marks another.")
        else:
            self.clear_notifications()  # that of `A` would cover it
            self.push_screen(ComparisonDialog(lines))

    def action_what_if(self) -> None:
        from seqtop.tui.dialogs.whatif import WhatIfDialog

        with self.ui.lock:
            moment = freeze(self.ui.state)
        self.push_screen(WhatIfDialog(self.ui.source.history, moment))

    def action_slo(self) -> None:
        from seqtop.tui.dialogs.slo_prompt import SloPrompt

        def choose(slo: Slo) -> None:
            for ui in self.engines.all:
                with ui.lock:
                    ui.latencies.limit(slo)
            self.draw(redraw=True)

        def closed(_: None) -> None:
            if (slo := self.ui.latencies.slo) != before:
                limits = f"The limits are {slo}." if slo else "There are no limits."
                self._show_notice(f"{limits} l shows or hides the latencies.")

        with self.ui.lock:
            moment = freeze(self.ui.state)
            before = self.ui.latencies.slo
        self.push_screen(SloPrompt(before, self.ui.source.history, moment, choose), closed)

    def action_not_here(self, what: str) -> None:
        self._show_notice(NOT_HERE[what])

    def action_record(self) -> None:
        from seqtop.tui.dialogs.prompts import RecordDialog

        ui = self.ui

        def chosen(what: str | None) -> None:
            if what == "past":
                history = ui.source.history
                self._record(lambda: ui.recording.save_past(history), saved=history)
            elif what == "future":
                self._record(ui.recording.toggle)

        if ui.engine is None or ui.recording.is_recording:
            self._record(ui.recording.toggle)
        else:
            self.push_screen(RecordDialog(ui.source.history.index.num_steps), chosen)

    def _record(self, record: Callable[[], str], *, saved: Timeline | None = None) -> None:
        """Calls `record` on a thread, since it waits for the disk, and shows its sentence.

        Args:
            record: Writes files, and returns a sentence.
            saved: The history that it writes, which may take long.
        """
        if saved is not None and not isinstance(saved, FileStore):
            steps = fmt.plural(saved.index.num_steps, "step")
            self.notify(f"Saving the past, {steps} …", timeout=_SAVING_SECONDS, markup=False)

        def work() -> None:
            severity: SeverityLevel = "information"
            try:
                sentence = record()
            except RecordingError as error:
                sentence, severity = f"Not recorded: {error}.", "error"
            self.call_later(self.clear_notifications)  # the one above
            self._show_notice(sentence, severity=severity)
            self._refresher.wake()

        self.run_worker(work, thread=True)

    def action_share(self) -> None:
        ui, folder, picture = self.ui, Path.cwd(), self.export_screenshot()
        with ui.lock:
            moment = moment_of(ui)

        def record() -> str:
            shared = share(moment, ui.source.history, picture, folder)
            self.shared.append(shared.command)
            self.call_later(self.copy_to_clipboard, shared.command)
            return f"Shared as {shared.card.stem}.txt and .svg. Copied: {shared.command}"

        self._record(record, saved=ui.source.history)

    def exit(self, *arguments: Any, **options: Any) -> None:
        """Ends the app, which draws no more."""
        self._refresher.stop()
        super().exit(*arguments, **options)

    def on_unmount(self) -> None:
        """Ends the threads that read the history, and completes the recordings."""
        self._refresher.stop()
        for thread in self._replays:
            thread.close()
        sentences: list[str | None] = []
        for ui in self.engines.all:
            try:
                sentences.append(ui.recording.finish())
            except RecordingError as error:
                sentences.append(f"Not everything was recorded: {error}.")
        sentences += [f"Shared: {command}" for command in self.shared]
        self.exit_message = " ".join(filter(None, sentences)) or None

    def action_submit(self) -> None:
        from seqtop.tui.dialogs.submit import SubmitDialog

        if (engine := self._controlled("submit prompts to")) is not None:
            self.push_screen(SubmitDialog(), partial(self._submit, engine))

    def action_abort(self) -> None:
        from seqtop.tui.dialogs.prompts import Confirm

        with self.ui.lock:
            selection = self.ui.selection
        if selection is None:
            self.notify("No request is selected.", severity="warning", markup=False)
        elif selection[0].finish_reason is not None:
            self._show_notice(
                f"{selection[0].request_id} has already finished.", severity="warning"
            )
        elif (engine := self._controlled("abort requests of")) is not None:
            request_id = selection[0].request_id

            def answered(yes: bool | None) -> None:
                if yes:
                    self.run_worker(lambda: self._abort(engine, request_id), thread=True)

            self.push_screen(Confirm(f"Abort {request_id}?"), answered)

    def _submit(self, engine: Engine, wanted: Submission | None) -> None:
        def ask(wanted: Submission) -> None:
            try:
                request_id = engine.submit(*wanted)
            except ControlError as error:
                self._show_notice(f"Not submitted: {error}.", severity="error")
            else:
                self.ui.cursor.pending = request_id
                self._show_notice(f"Submitted as {request_id}.")
                self._refresher.wake()  # it may have arrived before the answer

        if wanted is not None:
            self.run_worker(lambda: ask(wanted), thread=True)

    def _abort(self, engine: Engine, request_id: str) -> None:
        try:
            engine.abort(request_id)
        except ControlError as error:
            self._show_notice(f"Not aborted: {error}.", severity="error")
        else:
            self._show_notice(f"Aborted {request_id}.")

    def _controlled(self, what: str) -> Engine | None:
        """Returns the engine if it takes commands; notifies the user if not."""
        engine = self.ui.engine
        with self.ui.lock:
            # Not of the state on display, which may be the one before the engine's first snapshot.
            info, connection = self.ui.newest.info, self.ui.source.connection
        if engine is None:
            self._show_notice(f"Cannot {what} a recording.", severity="warning")
        elif info is None or connection.state is not ConnectionState.LIVE:
            self._show_notice(
                f"Cannot {what} this engine now: it is not connected.", severity="warning"
            )
        elif not info.control:
            self._show_notice(
                "Control is disabled (start the engine with --control).", severity="warning"
            )
        else:
            return engine
        return None

    def _show_notice(self, text: str, *, severity: SeverityLevel = "information") -> None:
        self.notify(safe_line(text), severity=severity, markup=False)


def slo_message(late: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Returns a sentence on the requests that missed their objectives."""
    request_id, missed = late[0]
    what = ", ".join(f"{FIGURES[key]} {fmt.seconds(value)}" for key, value in missed.items())
    more = f", and {fmt.plural(len(late) - 1, 'other')} too" if len(late) > 1 else ""
    return f"{request_id} missed its objective: {what}{more}."


def _mode(name: str, engine: int) -> str:
    """Returns the mode of an engine's screen; for the first engine, the name of the tab."""
    return f"{name} {engine}" if engine else name
