"""Runs the `seqtop` command for `python -m seqtop`."""

import sys

from seqtop.cli.main import main

sys.exit(main())
