"""Ending a ZeroMQ context without trusting that it ends."""

import threading
from typing import Any

import zmq

_PATIENCE_SECONDS = 5.0


def end(context: zmq.Context[Any], *, linger: int | None = 0) -> None:
    """Close what is open in `context` and end it, in a few seconds at most.

    libzmq loses a message between its own threads once in a great many terminations (seen with
    4.3.5, where connections were broken the moment before), and then waits for ever. Neither an
    engine nor a user who wants to leave is to wait along: what is left behind is an idle thread.

    Args:
        linger: Milliseconds to go on sending what is queued; None for what each socket has been
            told.
    """
    ending = threading.Thread(
        target=context.destroy, args=(linger,), name="seqtop-closing", daemon=True
    )
    ending.start()
    ending.join(_PATIENCE_SECONDS)
