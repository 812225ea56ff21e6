"""The screen that lists engine steps."""
