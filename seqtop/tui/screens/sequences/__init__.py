"""The main screen: the sequence table and the detail of the selected sequence."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("1", "sequences", "Sequences")
