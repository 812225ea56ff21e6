"""The time since an engine was last heard of."""

from collections.abc import Callable

from seqtop.transport.connection import Connection


class MessageClock:
    """Measures the silence of an engine, by this machine's clock.

    Args:
        connection: The connection whose messages are counted.
        clock: Returns this machine's time in seconds.
    """

    def __init__(self, connection: Connection, clock: Callable[[], float]) -> None:
        self._connection = connection
        self._clock = clock
        self._num_messages = -1
        self._last_time = clock()

    def update(self) -> None:
        """Notices new messages. Called once per frame, or more often."""
        if self._connection.num_messages != self._num_messages:
            self._num_messages = self._connection.num_messages
            self._last_time = self._clock()

    @property
    def silence(self) -> float:
        """Seconds since the last message arrived."""
        return max(self._clock() - self._last_time, 0.0)
