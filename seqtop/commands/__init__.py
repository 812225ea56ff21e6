"""The commands, one module each: `add` describes it to argparse and `run` does it.

Heavy imports stay inside `run`, so that `--help` answers at once.
"""

from seqtop.commands import (
    attach,
    check,
    completion,
    demo,
    export,
    keygen,
    record,
    replay,
    serve,
    show,
)

COMMANDS = (demo, attach, record, replay, show, export, check, serve, keygen, completion)
"""In the order in which the help lists them."""
