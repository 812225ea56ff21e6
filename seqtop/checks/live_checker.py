"""Checks of a session's live stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from seqtop.checks.gate import Gate
from seqtop.checks.message_rules import UNREADABLE
from seqtop.checks.stream_checker import Stored, StreamChecker
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.wire import codec, parsing


class LiveChecker(StreamChecker):
    """Checks the messages that a session receives, on the session's thread.

    Args:
        session: The session.
        stored: The findings of a rule to store where there are too many, as in `StreamChecker`.
        thresholds: The thresholds of the rules.
        gates: What it has to satisfy besides, as in `StreamChecker`.
    """

    def __init__(
        self,
        session: Session,
        *,
        stored: Stored = "first",
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        gates: Sequence[Gate] = (),
    ) -> None:
        super().__init__(stored=stored, thresholds=thresholds, gates=gates)
        self._session = session
        self._num_errors = self._num_resyncs = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Checks while the context lasts; enter it before the session, to miss no message."""
        self._session.add_listener(self._observe)
        self._session.add_callback(self._observe_connection)
        try:
            yield
        finally:
            self._session.remove_listener(self._observe)
            self._session.remove_callback(self._observe_connection)

    def _observe_connection(self) -> None:
        """Reports unreadable messages, and stops at a gap."""
        connection = self._session.connection
        if connection.num_errors > self._num_errors:
            self._num_errors = connection.num_errors
            self.report(UNREADABLE, connection.last_error)
        if connection.num_resyncs > self._num_resyncs:
            self._num_resyncs = connection.num_resyncs
            self.stop()

    def _observe(self, change: StateChange) -> None:
        """Checks an event, or starts again from a snapshot.

        Two states must not share parts of an event or a snapshot, so both are decoded again.
        """
        if change.event is None:
            state = codec.decode(codec.encode(change.state), EngineState)
            self.start(change.sequence_number, state)
        else:
            self.check(change.sequence_number, parsing.event(change.payload))
