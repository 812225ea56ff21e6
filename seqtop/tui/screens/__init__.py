"""The screens, a folder each.

A folder's `__init__` declares the screen's tab. Its module `screen` has the class; it is imported
when the screen is first opened.
"""

from seqtop.tui.screens import blocks, checks, fleet, overview, sequences, steps, timeline

TABS = (sequences.TAB, blocks.TAB, timeline.TAB, steps.TAB, checks.TAB, overview.TAB)
"""Tabs of the screens that show one engine, in order."""
FLEET = fleet.TAB
"""Tab of the screen that shows all engines, where there are several."""
