"""The screen that lists all engines."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("F", "fleet", "Fleet")
