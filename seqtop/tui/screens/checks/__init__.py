"""The screen that lists failed checks."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("5", "checks", "Checks")
