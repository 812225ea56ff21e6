"""Runs the `seqtop` command for `python -m seqtop`."""

from seqtop.cli.main import run

run()
