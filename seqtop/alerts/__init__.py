"""Alerts: a command or a web server is told that a condition begins to hold, or that this ends."""
