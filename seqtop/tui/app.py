"""The app: one feed, the screens that show it, and the keys that work on all of them.

Screens and dialogs other than the first are imported when they are opened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.binding import Binding
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import AwaitMount

from seqtop import format as fmt
from seqtop.checks.background import BackgroundChecker
from seqtop.connection import ConnectionState, ControlError
from seqtop.history.event_index import EventKind
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.sanitize import safe_line
from seqtop.state.slo import FIGURES
from seqtop.tui import signals, theme, time_travel
from seqtop.tui.background_checker import CheckThread
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.engines import Engines
from seqtop.tui.feed import EVERYTHING, NOTHING, Changes, Feed
from seqtop.tui.garbage import Collector
from seqtop.tui.key_by_key import KeyByKeyApp
from seqtop.tui.keymap import APP_KEYS, group_of
from seqtop.tui.recording_control import RecordingControl
from seqtop.tui.refresher import Refresher
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.screens.registry import BLOCKS, FLEET, SEQUENCES, TABS, screen_type
from seqtop.tui.settings import DEFAULTS, SavedState, Settings, SettingsChanged, told
from seqtop.tui.source import Source

if TYPE_CHECKING:
    from seqtop.tui.dialogs.submit import Submission
    from seqtop.tui.moment_input import TypedMoment
    from seqtop.tui.screens.checks.screen import ChecksScreen

FLEET_ACTIONS = frozenset({"go_to", "help", "quit", "turn_theme"})
"""What the app itself does while all engines are on show; the rest is about one of them."""
GLANCE_SECONDS = 0.5
"""Between two looks at engines that are not on show."""
_HERE = Path(__file__).parent


def _key_of(tab: Tab) -> Binding:
    title = "All engines" if tab is FLEET else tab.title
    return Binding(tab.key, f"go_to({tab.name!r})", title, show=False, id=f"screen.{tab.name}")


TIME_KEYS = [
    Binding(key, action, description, show=False, id=f"time.{name}")
    for key, action, description, name in (
        ("left,comma", "step(-1)", "One step back in time", "back"),
        ("right,full_stop", "step(1)", "One step on", "on"),
        ("left_curly_bracket,shift+left", "step(-10)", "Ten steps back", "far-back"),
        ("right_curly_bracket,shift+right", "step(10)", "Ten steps on", "far-on"),
        ("p", "jump('preemption', -1)", "Back to the last preemption", "preemption-before"),
        ("P", "jump('preemption', 1)", "On to the next preemption", "preemption-after"),
        ("e", "jump('finish', -1)", "Back to the last end of a request", "finish-before"),
        ("E", "jump('finish', 1)", "On to the next end of a request", "finish-after"),
        ("w", "jump('swap', -1)", "Back to the last swap", "swap-before"),
        ("W", "jump('swap', 1)", "On to the next swap", "swap-after"),
        ("ctrl+left", "scrub(-1)", "A twentieth of the record back", "scrub-back"),
        ("ctrl+right", "scrub(1)", "A twentieth of the record on", "scrub-on"),
        ("colon", "go_to_moment", "Go to a step or a time", "step"),
        ("v", "check(-1)", "Back to the last failed check", "check-before"),
        ("V", "check(1)", "On to the next failed check", "check-after"),
        ("0", "oldest", "Go to the oldest moment on record", "oldest"),
        ("L", "newest", "Back to now; in a recording, to its end", "newest"),
    )
]
"""Keys that go through what is on record; all but `L` pause, where there is anything to go to."""


class SeqtopApp(KeyByKeyApp):
    """Shows `sources`, engines or recordings. Whoever made them starts and closes them.

    `title` stands in the header until the engine has said its name; `clock` gives this
    machine's time in seconds, for the age of what is shown once the engine has gone silent.
    `settings` is how it looks at first; what the user chooses later goes to `memory`, if there is
    one. `problems` are sentences on settings that cannot be, to be shown at the start.
    """

    CSS_PATH = sorted(_HERE.rglob("*.tcss"))
    DEFAULT_MODE = SEQUENCES.name
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        *map(_key_of, (*TABS, FLEET)),
        Binding("n", "submit", "New", id="engine.submit", tooltip="Submit a prompt"),
        Binding("x", "abort", "Abort", id="engine.abort", tooltip="Abort the selected request"),
        Binding(
            "space", "pause", "Pause", id="time.pause", tooltip="Hold the picture, or let it go on"
        ),
        *TIME_KEYS,
        Binding("b", "go_to_block", "Who holds a block", show=False, id="screen.block"),
        Binding("R", "record", "Record what arrives", show=False, id="engine.record"),
        *APP_KEYS,
    ]

    def __init__(
        self,
        *sources: Source,
        title: str = "seqtop",
        clock: Callable[[], float] = time.time,
        settings: Settings = DEFAULTS,
        memory: SavedState | None = None,
        problems: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.title = title
        self.fleet = Engines(sources, clock)
        self._had_missed = False
        self.farewell: str | None = None
        """What there is to say once the app has ended."""
        self._reviewers: list[CheckThread] = []
        self._garbage = Collector()
        self._pulse = Refresher(
            lambda: self.feed, lambda: self.call_next(self.draw), self._garbage.rest
        )
        self.animation_level = "none"
        self.register_theme(theme.DARK)
        self.register_theme(theme.LIGHT)
        theme.begin_with(self, settings.theme or theme.DARK.name)
        for feed in self.fleet.feeds:
            settings.set_up(feed)
        self._memory = memory
        self._problems = problems
        self._tabs = (*TABS, FLEET) if len(self.fleet) > 1 else TABS

    @property
    def feed(self) -> Feed:
        """The feed of the engine on show."""
        return self.fleet.feed

    def get_default_screen(self) -> Screen[None]:
        """The first screen. Were it a mode by now, Textual would parse all style sheets twice."""
        return self._screen(SEQUENCES, self.fleet.feeds[0])

    def _screen(self, tab: Tab, feed: Feed) -> EngineScreen:
        return screen_type(tab)(feed, title=self.title, tabs=self._tabs)

    def _fleet_screen(self) -> Screen[None]:
        from seqtop.tui.screens.fleet.screen import FleetScreen

        return FleetScreen(self.fleet, self._tabs)

    def _add_modes(self) -> None:
        for index, feed in enumerate(self.fleet.feeds):
            for tab in TABS:
                self.add_mode(_mode(tab.name, index), partial(self._screen, tab, feed))
        if len(self.fleet) > 1:
            self.add_mode(FLEET.name, self._fleet_screen)

    def switch_mode(self, mode: str) -> AwaitMount:
        """Go to a screen by its name: that of the engine on show."""
        self._pulse.wake()  # it has slept with an eye on that of the screen one comes from
        return super().switch_mode(mode if mode == FLEET.name else _mode(mode, self.fleet.shown))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theme.styles(dark=self.current_theme.dark)

    def on_load(self) -> None:
        self._garbage.start()  # lest a full collection delays the first frame

    def on_mount(self) -> None:
        signals.heed(self)
        self._add_modes()
        self._pulse.start()
        if len(self.fleet) > 1:
            self.set_interval(GLANCE_SECONDS, self.glance)
            self.switch_mode(FLEET.name)
        self.theme_changed_signal.subscribe(self, lambda chosen: self.remember(theme=chosen.name))
        if self._problems:
            self.notify(told(self._problems), severity="warning", markup=False)
        self.call_after_refresh(self._garbage.settle)

    def key_comes(self) -> None:
        self._had_missed, self.feed.missed = bool(self.feed.missed), ""

    def key_went(self) -> None:
        if self._had_missed:
            self._show_again()

    def on_chosen(self, message: SettingsChanged) -> None:
        self.remember(**message.changes)

    def remember(self, **changes: object) -> None:
        """Keep what the user has chosen for the next time, if it is to be kept."""
        if self._memory is not None and (problem := self._memory.keep(**changes)):
            self._tell(problem, severity="warning")

    def draw(self) -> None:
        """Show what is new, if anything is."""
        with self.feed.lock:
            frame = self.feed.poll()
            if frame is None:
                return
            self._show(frame)
            late = self.feed.latencies.take_news()
        self._garbage.drew()
        if late:
            self._tell(slo_news(late), severity="warning")

    def glance(self) -> None:
        """Keep up with the engines that are not on show, and show how they all are."""
        from seqtop.tui.screens.fleet.screen import FleetScreen

        self.fleet.glance()
        for screen in self.screen_stack:
            if isinstance(screen, FleetScreen):
                screen.show()

    def _show(self, frame: Changes) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, EngineScreen):
                screen.show(frame)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        for active in screen.active_bindings.values():
            binding, namespace = active.binding, active.node
            if binding.id is not None and binding.action != "quit":
                yield SystemCommand(
                    binding.tooltip or binding.description,
                    f"{group_of(binding)} · {self.get_key_display(binding)}",
                    lambda action=binding.action, node=namespace: self.run_action(action, node),
                )

    def action_go_to(self, name: str) -> None:
        self.switch_mode(name)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """There is no fleet of one engine, and nothing is done to one that is not looked at."""
        if action == "go_to" and parameters == (FLEET.name,):
            return len(self.fleet) > 1
        about_one = f"action_{action}" in SeqtopApp.__dict__ and action not in FLEET_ACTIONS
        return not about_one or self.current_mode != FLEET.name

    def action_turn_theme(self) -> None:
        self.theme = (theme.LIGHT if self.current_theme.dark else theme.DARK).name

    def action_help(self) -> None:
        from seqtop.tui.dialogs.help import HelpScreen

        self.push_screen(HelpScreen(self.screen.active_bindings))

    def action_pause(self) -> None:
        with self.feed.lock:
            if self.feed.paused:
                self.feed.resume()
            else:
                self._show(self.feed.pause())
        self.draw()

    def action_step(self, count: int) -> None:
        end = "newest moment so far" if count > 0 else "oldest moment on record"
        self._go(time_travel.by_steps(count), f"This is the {end}.")

    def action_jump(self, kind: str, direction: int) -> None:
        what = {"preemption": "preemption", "finish": "request's end", "swap": "swap"}[kind]
        where = "after" if direction > 0 else "before"
        missing = f"No {what} is on record {where} this."
        with self.feed.lock:
            self._show(
                self.feed.jump(time_travel.to_kind(EventKind[kind.upper()], direction), missing)
            )

    def action_oldest(self) -> None:
        self._go(time_travel.to_end(-1), "This is the oldest moment on record.")

    def action_newest(self) -> None:
        if self.feed.replay is not None:
            self._go(time_travel.to_end(1), "This is the end of the recording.")
        elif self.feed.paused:
            self.action_pause()

    def action_scrub(self, direction: int) -> None:
        end = "newest moment so far" if direction > 0 else "oldest moment on record"
        self._go(time_travel.by_share(direction / 20), f"This is the {end}.")

    def action_go_to_moment(self) -> None:
        from seqtop.tui.dialogs.moment_prompt import MomentPrompt

        def chosen(wanted: TypedMoment | None) -> None:
            if wanted is None:
                return
            remark = ""

            def find(timeline: Timeline, position: int) -> int | None:
                nonlocal remark
                found, remark = wanted.find(timeline, position)
                return found

            with self.feed.lock:
                frame = self.feed.go(find, "")
                self.feed.remark = remark or self.feed.remark
                self._show(frame)

        self.push_screen(MomentPrompt(), chosen)

    def review(self) -> BackgroundChecker | None:
        """Have what is on record checked from now on; `None` if nothing is."""
        timeline = self.feed.source.history
        if self.feed.review is None and timeline is not None:
            self.feed.review = BackgroundChecker(timeline)
            self._reviewers.append(CheckThread(self.feed.review))
            self._reviewers[-1].start()
        return self.feed.review

    def on_checks_screen_wanted(self) -> None:
        self.review()

    def on_checks_screen_chosen(self, message: ChecksScreen.Chosen) -> None:
        from seqtop.tui.screens.checks.findings import sentence

        with self.feed.lock:
            self._show(self.feed.go_to_finding(message.found, sentence([message.found])))
        self.switch_mode(SEQUENCES.name)

    def action_check(self, direction: int) -> None:
        from seqtop.tui.screens.checks.findings import sentence

        review = self.review()
        with self.feed.lock:
            if review is None:
                self._show(self.feed.go(time_travel.to_end(1), ""))  # which says that nothing is
                return
            find = review.next if direction > 0 else review.previous
            found = find(self.feed.position)
            if found:
                self._show(self.feed.go_to_finding(found[0], sentence(found)))
                return
        so_far = " so far; checking goes on" if review.is_behind else ""
        where = "after" if direction > 0 else "before"
        steps = fmt.plural(review.num_steps, "step")
        self._tell(f"No failed check is known {where} this: {steps} checked{so_far}.")

    def action_go_to_block(self) -> None:
        from seqtop.tui.dialogs.block_prompt import BlockPrompt

        def chosen(block: int | None) -> None:
            if block is None:
                return
            with self.feed.lock:
                num_blocks = self.feed.state.info.num_gpu_blocks if self.feed.state.info else 0
                self.feed.block = max(0, min(block, num_blocks - 1))
            if not 0 <= block < num_blocks:
                last = fmt.count(num_blocks - 1)
                self._tell(f"There is no block {block}; the last is {last}.", severity="warning")
            if self.current_mode != BLOCKS.name:
                self.switch_mode(BLOCKS.name)
            self._show(EVERYTHING)

        self.push_screen(BlockPrompt(), chosen)

    def _go(self, find: time_travel.Seek, otherwise: str) -> None:
        with self.feed.lock:
            self._show(self.feed.go(find, otherwise))

    def action_record(self) -> None:
        if self.feed.replay is not None:
            self._tell("What you see is a recording already.", severity="warning")
        elif self.feed.taper is None:
            self._tell("What you see cannot be recorded.", severity="warning")
        else:
            taper = self.feed.taper
            self.run_worker(lambda: self._record(taper), thread=True)

    def _record(self, taper: RecordingControl) -> None:
        try:
            self._tell(taper.toggle())
        except RecordingError as error:
            self._tell(f"Not recorded: {error}.", severity="error")
        self.call_from_thread(self._show_again)

    def _show_again(self) -> None:
        with self.feed.lock:
            self._show(NOTHING)

    def on_unmount(self) -> None:
        """End what goes on besides: checking, and recordings, which are to be whole."""
        self._pulse.stop()
        self._garbage.stop()
        for reviewer in self._reviewers:
            reviewer.close()
        told: list[str | None] = []
        for taper in (feed.taper for feed in self.fleet.feeds if feed.taper is not None):
            try:
                told.append(taper.finish())
            except RecordingError as error:
                told.append(f"Not all was recorded: {error}.")
        self.farewell = " ".join(filter(None, told)) or None

    def action_submit(self) -> None:
        from seqtop.tui.dialogs.submit import SubmitDialog

        if self._may_control("submit prompts to"):
            self.push_screen(SubmitDialog(), self._submit)

    def action_abort(self) -> None:
        from seqtop.tui.dialogs.confirm import Confirm

        with self.feed.lock:
            selection = self.feed.selection
        if selection is None:
            self.notify("No request is selected.", severity="warning", markup=False)
        elif selection[0].finish_reason is not None:
            self._tell(f"{selection[0].request_id} has finished already.", severity="warning")
        elif self._may_control("abort requests of"):
            request_id = selection[0].request_id

            def answered(yes: bool | None) -> None:
                if yes:
                    self.run_worker(lambda: self._abort(request_id), thread=True)

            self.push_screen(Confirm(f"Abort {request_id}?"), answered)

    def _submit(self, wanted: Submission | None) -> None:
        def ask(wanted: Submission) -> None:
            try:
                request_id = self.feed.source.submit(*wanted)
            except ControlError as error:
                self._tell(f"Not submitted: {error}.", severity="error")
            else:
                self.feed.expected = request_id
                self._tell(f"Submitted as {request_id}.")
                self.call_from_thread(self._show_again)  # it may have arrived before the answer

        if wanted is not None:
            self.run_worker(lambda: ask(wanted), thread=True)

    def _abort(self, request_id: str) -> None:
        try:
            self.feed.source.abort(request_id)
        except ControlError as error:
            self._tell(f"Not aborted: {error}.", severity="error")
        else:
            self._tell(f"Aborted {request_id}.")

    def _may_control(self, what: str) -> bool:
        """Whether the engine takes commands; tells the user if not."""
        with self.feed.lock:
            info, link = self.feed.state.info, self.feed.source.link.state
        if self.feed.replay is not None:
            self._tell(f"Cannot {what} a recording: no engine is there.", severity="warning")
        elif info is None or link is not ConnectionState.LIVE:
            self._tell(f"Cannot {what} this engine now: it is not connected.", severity="warning")
        elif not info.control:
            self._tell(f"Cannot {what} this engine: it lets others only watch.", severity="warning")
        else:
            return True
        return False

    def _tell(self, text: str, *, severity: SeverityLevel = "information") -> None:
        self.notify(safe_line(text), severity=severity, markup=False)


def slo_news(late: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Who has missed which objective, in a sentence."""
    request_id, missed = late[0]
    what = ", ".join(f"{FIGURES[key]} {fmt.seconds(value)}" for key, value in missed.items())
    more = f", and {fmt.plural(len(late) - 1, 'other')} too" if len(late) > 1 else ""
    return f"{request_id} missed its objective: {what}{more}."


def _mode(name: str, engine: int) -> str:
    """The mode of a screen of an engine; the first engine's is the screen's own name."""
    return f"{name} {engine}" if engine else name
