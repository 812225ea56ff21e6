"""The app in a browser, served by textual-serve. Needs the extra `web`."""
