"""The screen that lists engine steps."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("4", "steps", "Steps")
