"""`python -m seqtop` is the `seqtop` command."""

import sys

from seqtop.cli import main

sys.exit(main())
