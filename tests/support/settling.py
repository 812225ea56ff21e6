"""Waiting for an app of this process to come to rest, and rendering its screen."""

import asyncio
import time
from typing import Any

from textual._compositor import Compositor
from textual._context import active_app, visible_screen_stack
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip

from tests.support.waiting import SECONDS

_FRAMES = 50
"""At most so many are drawn at once: Textual lays some out for ever on a terminal of one cell."""


async def settled(app: App[Any]) -> None:
    """Wait until `app` has no message left, nothing to draw and no task that could go on.

    What only a thread or a timer will bring is not waited for: a test that is about it waits for a
    condition. An app that has ended, or failed, is at rest.
    """
    deadline = time.monotonic() + SECONDS
    num_frames = 0
    beneath: list[Screen[Any]] | None = None
    while True:
        await asyncio.sleep(0)
        if app._exit or app._exception is not None or not app._running:
            return
        if asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]
            continue
        busy = [pump for pump in (app, *app._registry) if _is_busy(pump)]
        if busy or app._batch_count:  # with something slow, or until Textual draws again
            assert time.monotonic() < deadline, f"no end to what {busy or app} do"
            await asyncio.sleep(0.001)
        elif app._resize_event is not None:
            app._check_resize()  # now, rather than a little later
        elif _is_stale(app.screen) and num_frames < _FRAMES:
            num_frames += 1
            app.screen._on_timer_update()  # now, rather than at the next frame
        elif beneath is None:  # once
            beneath = [
                background_screen
                for background_screen in app._background_screens
                if _is_stale(background_screen)
            ]
            for screen in beneath:
                screen._on_timer_update()
                # Textual never calls these all drawn, and would draw all of them for each key.
                screen._repaint_required = False
        else:
            return


def _is_busy(pump: Any) -> bool:
    if pump._closed or not pump._running:
        return False
    has_messages = not pump._message_queue.empty() or pump._pending_message is not None
    return has_messages or bool(pump._next_callbacks)


def _is_stale(screen: Screen[Any]) -> bool:
    """True if Textual would draw, or call back, at the next frame."""
    return bool(
        screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )


textual_render_update = Compositor.render_update


def render_update(compositor: Compositor, full: bool = False, **options: Any) -> Any:
    """Stands for Textual's, whose frames a headless terminal throws away: a fifth of an app's time.

    What a test looks at is rendered then, and all of a screen when its app ends.
    """
    if full:
        return textual_render_update(compositor, full, **options)
    compositor._dirty_regions.clear()
    return None


def render(app: App[Any]) -> list[Strip]:
    """The lines of the terminal."""
    visible_screen_stack.set(app._background_screens)
    return app.screen._compositor.render_strips()


async def wait_for_idle(min_sleep: float = 0.0, max_sleep: float = 0.0) -> None:
    """Stands for Textual's, which takes a process for idle that gets little of a busy machine."""
    await settled(active_app.get())


async def wait_for_screen(pilot: Pilot[Any], timeout: float = SECONDS) -> bool:
    """Stands for the pilot's own, which waits for what is in the queues when it begins."""
    await settled(pilot.app)
    return pilot.app._exception is None
