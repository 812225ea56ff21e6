"""What every screen that shows the engine has in common: header, tabs, its own body, footer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.widget import Widget

from seqtop.sanitize import safe_line
from seqtop.tui import time_travel
from seqtop.tui.chrome.footer import KeyFooter
from seqtop.tui.chrome.header import Header, sentence
from seqtop.tui.chrome.notice import Notice
from seqtop.tui.chrome.scrubber import Scrubber
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.feed import EVERYTHING, Changes, Feed
from seqtop.tui.screens.base import TabbedScreen

CONTROLS = frozenset({"submit", "abort"})
"""Actions that ask something of the engine."""


class EngineScreen(TabbedScreen):
    """A screen that is told what changed, at most thirty times a second.

    A subclass gives its `TAB`, yields its widgets from `body` and draws them in
    `update`. What is selected, filtered and paused is the feed's, so it carries over from screen
    to screen.
    """

    STEP_KEYS: ClassVar[str] = "← →"
    """The keys that go through time by steps, where a widget does not use them itself."""

    def __init__(self, feed: Feed, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(tabs)
        self.feed = feed
        self._header = Header(feed, title=title)
        self._notice = Notice(feed, lambda: sentence(feed, self.STEP_KEYS))
        self._scrubber = Scrubber(feed)
        self._keys = KeyFooter()

    def compose(self) -> ComposeResult:
        yield self._header
        yield self._tabs
        yield self._notice
        yield self._scrubber
        yield from self.body()
        yield self._keys

    def body(self) -> Iterable[Widget]:
        """The widgets between the tabs and the footer."""
        raise NotImplementedError

    def update(self, frame: Changes) -> None:
        """Draw in the body what `frame` changed; under the feed's lock."""
        raise NotImplementedError

    @property
    def ages(self) -> bool:
        """Whether time alone has it look different."""
        return self.feed.ages

    def show(self, frame: Changes) -> None:
        """Draw what `frame` changed. The app calls it under the feed's lock."""
        if not (frame.news or self.ages):
            return
        if self.feed.missed and not self.feed.paused:
            self.notify(safe_line(self.feed.missed), timeout=4, markup=False)
            self.feed.missed = ""
        self._keys.leave_out(frozenset() if self.feed.may_be_controlled else CONTROLS)
        self._header.update()
        self._notice.update()
        self._scrubber.update()
        self.update(frame)

    def show_all(self) -> None:
        """Draw everything anew, after something other than the engine changed it."""
        with self.feed.lock:
            self.show(EVERYTHING)

    def on_scrubber_moved(self, message: Scrubber.Moved) -> None:
        with self.feed.lock:
            self.show(self.feed.go(time_travel.to_share(message.share), ""))

    def on_screen_resume(self) -> None:
        self.show_all()
