"""The terminal user interface: a Textual app that shows the state of engines."""
