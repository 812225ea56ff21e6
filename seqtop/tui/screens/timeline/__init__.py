"""The timeline screen."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("3", "timeline", "Timeline")
