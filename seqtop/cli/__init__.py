"""The commands of `seqtop`, one module each.

`add_command` declares the command to argparse, `run` executes it and returns the exit status. A
module is imported only when its command, or the help for all commands, is requested. Imports that
cost time are inside `run`, so that `--help` is fast.
"""

COMMANDS = (
    "demo",
    "attach",
    "record",
    "replay",
    "show",
    "export",
    "report",
    "check",
    "diff",
    "explain",
    "whatif",
    "advise",
    "test",
    "serve",
    "mcp",
    "keygen",
    "completion",
)
"""The names of all commands, in the order in which the help lists them."""
