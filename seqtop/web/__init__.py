"""The app in a browser, through textual-serve. Needs the extra `web`."""
