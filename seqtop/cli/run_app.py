"""Runs the app for the commands that show it."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seqtop.cli.messages import fail
from seqtop.text.ascii_output import use_ascii

if TYPE_CHECKING:
    from seqtop.cli.found_engines import FoundSessions
    from seqtop.tui.settings import Settings
    from seqtop.tui.source import Source

NO_TERMINAL = "the app needs a terminal; `seqtop show` prints to a file or a pipe"


def has_terminal() -> bool:
    """Returns whether the app has a terminal, or another Textual driver, to draw on."""
    # Textual draws on standard error: redirected, it would fill a log with screens.
    return is_served() or (sys.stdin.isatty() and sys.stderr.isatty())


def is_served() -> bool:
    """Returns whether the app draws on a page of `seqtop serve`."""
    # textual-serve sets a driver of its own.
    return "TEXTUAL_DRIVER" in os.environ


def run_app(
    sources: Sequence[Source],
    options: argparse.Namespace,
    notices: Sequence[str] = (),
    *,
    remembers: bool = True,
    needs_engine: bool = False,
    found: FoundSessions | None = None,
) -> int:
    """Shows `sources` until the user quits, and returns the exit status.

    Args:
        options: The options of `seqtop.cli.options.add_view_options`.
        notices: Sentences shown when the app starts.
        remembers: Whether the app starts with the view of the last run, and saves its own.
        needs_engine: Whether the app ends by itself if the engine stops before it sent a state.
        found: Further engines, as a register lists them.
    """
    if not has_terminal():
        return fail(NO_TERMINAL)
    # Until the first frame: of the start, a seventh would be collections that find nothing.
    gc.disable()
    from seqtop.process import paths
    from seqtop.tui.app import SeqtopApp
    from seqtop.tui.settings import SavedState, Settings, read

    from_options = Settings(
        columns=options.columns,
        sort=options.sort,
        filter=options.filter,
        ascii=options.ascii,
        slo=options.slo and dict(options.slo.limits),
        on=tuple(vars(options).get("on") or ()) or None,
    )
    from_file, problems = read(options.config or paths.config_file())
    saved = SavedState(paths.state_file())
    settings = from_options.over(from_file)
    settings = settings.over(saved.settings if remembers else Settings(theme=saved.settings.theme))
    if settings.ascii:
        use_ascii(sys.stderr)
    _share_memory(sources, settings)
    if found is not None:
        found.on_change = lambda sessions: _share_memory(sessions, settings)
    app = SeqtopApp(
        *sources,
        settings=settings,
        # The preferences of a page are its own: they are not saved for other pages.
        saved_state=saved if remembers and not is_served() else None,
        problems=[*notices, *problems, *saved.problems],
        has_tour=getattr(options, "tour", False),
        offers_tour=hasattr(options, "tour"),
        needs_engine=needs_engine,
        found=found,
    )
    if (wanted := getattr(options, "select", None)) is not None:
        app.ui.cursor.pending = wanted
    status = app.run()
    if app.exit_message is not None:
        print(f"seqtop: {app.exit_message}", file=sys.stderr)
    return app.return_code or 0 if status is None else status


def _share_memory(sources: Sequence[Source], settings: Settings) -> None:
    """Limits the memory of sessions: all engines together use as much as one would."""
    from seqtop.live.session import Session
    from seqtop.tui.settings import FINISHED_MB, HISTORY_MB

    for session in sources:
        if isinstance(session, Session):
            session.limit_memory(
                history=(settings.history_mb or HISTORY_MB) * 10**6 // len(sources),
                finished=(settings.finished_mb or FINISHED_MB) * 10**6 // len(sources),
            )
