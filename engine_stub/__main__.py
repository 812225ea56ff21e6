"""`python -m engine_stub` is the `engine-stub` command."""

import sys

from engine_stub.entrypoints.cli import main

sys.exit(main())
