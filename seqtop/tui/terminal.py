"""Whether the terminal that the app is drawn on is still there."""

import select
import sys


class Terminal:
    """That of standard input, if it is one. A terminal that closes sends a signal only to whoever
    it controls; to others it is a file that has ended, which Textual would read for ever."""

    def __init__(self) -> None:
        self._poll: select.poll | None = None
        try:
            if sys.__stdin__ is not None and sys.__stdin__.isatty():
                self._poll = select.poll()
                self._poll.register(sys.__stdin__.fileno(), 0)  # hanging up is always told
        except ValueError:  # it is closed
            self._poll = None

    @property
    def is_gone(self) -> bool:
        return self._poll is not None and any(
            event & select.POLLHUP for _, event in self._poll.poll(0)
        )
