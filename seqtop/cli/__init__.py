"""The commands, one module each: `add` describes it to argparse and `run` does it.

A module is imported when its command, or the help on all of them, is asked for. Heavy imports stay
inside `run`, so that `--help` answers at once.
"""

NAMES = (
    "demo",
    "attach",
    "record",
    "replay",
    "show",
    "export",
    "check",
    "serve",
    "keygen",
    "completion",
)
"""What can be typed after `seqtop`, in the order in which the help lists it."""
