"""The screen that lists all engines."""
