"""The screens of an engine by name, with their tabs; each is imported when it is first opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqtop.tui.chrome.tabs import Tab

if TYPE_CHECKING:
    from seqtop.tui.screens.engine_screen import EngineScreen

SEQUENCES = Tab("1", "sequences", "Sequences")
BLOCKS = Tab("2", "blocks", "Blocks")
TIMELINE = Tab("3", "timeline", "Timeline")
STEPS = Tab("4", "steps", "Steps")
CHECKS = Tab("5", "checks", "Checks")
TABS = (SEQUENCES, BLOCKS, TIMELINE, STEPS, CHECKS)
FLEET = Tab("F", "fleet", "Fleet")
"""Of the screen of all engines, where there are several."""


def screen_type(tab: Tab) -> type[EngineScreen]:
    """What `tab`, one of `TABS`, leads to."""
    if tab is BLOCKS:
        from seqtop.tui.screens.blocks.screen import BlocksScreen

        return BlocksScreen
    if tab is TIMELINE:
        from seqtop.tui.screens.timeline.screen import TimelineScreen

        return TimelineScreen
    if tab is STEPS:
        from seqtop.tui.screens.steps.screen import StepsScreen

        return StepsScreen
    if tab is CHECKS:
        from seqtop.tui.screens.checks.screen import ChecksScreen

        return ChecksScreen
    from seqtop.tui.screens.sequences.screen import SequencesScreen

    return SequencesScreen
