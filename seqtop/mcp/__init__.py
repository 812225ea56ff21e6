"""Answers about an engine or a recording for the tools of a Model Context Protocol client."""
