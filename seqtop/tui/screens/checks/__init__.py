"""The screen that lists failed checks."""
