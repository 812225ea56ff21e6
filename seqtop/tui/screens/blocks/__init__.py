"""The block map screen."""

from seqtop.tui.chrome.tabs import Tab

TAB = Tab("2", "blocks", "Blocks")
