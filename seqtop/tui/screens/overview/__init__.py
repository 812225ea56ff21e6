"""The overview: the engine's figures over time."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("6", "overview", "Overview")
