"""`python -m seqtop` is the `seqtop` command."""

import sys

from seqtop.cli.main import main

sys.exit(main())
