"""The state of a viewer's connection to its engine."""

import enum

import msgspec


class ConnectionState(enum.Enum):
    """A state of the connection."""

    CONNECTING = "connecting"
    """No message of the engine has arrived yet."""
    SYNCING = "syncing"
    """Waiting for a snapshot: messages were missed, or the first one has just arrived."""
    LIVE = "live"
    """Every message so far has been applied."""
    LOST = "lost"
    """The heartbeats of the engine have stopped; the state is old."""
    STOPPED = "stopped"
    """The engine has announced its end."""
    INCOMPATIBLE = "incompatible"
    """The publisher uses another version of the protocol, or another protocol."""
    REFUSED = "refused"
    """The CurveZMQ keys of engine and viewer do not match, or only one of them has keys."""
    REPLAY = "replay"
    """A recording is played; there is no connection."""


class Connection(msgspec.Struct):
    """The state of a connection, and its counters."""

    endpoint: str
    """It changes if the engine returns at another one."""
    state: ConnectionState = ConnectionState.CONNECTING
    detail: str = ""
    """The reason for the state, in one sentence; may be empty when LIVE."""
    num_messages: int = 0
    num_bytes: int = 0
    num_missed: int = 0
    """Messages lost on the way, counted by gaps in the sequence numbers."""
    num_resyncs: int = 0
    """Snapshots received after a gap, a restart or an unreadable message."""
    num_unknown: int = 0
    """Events of names that this version does not know; they were skipped."""
    num_errors: int = 0
    """Messages that could not be read."""
    last_error: str = ""


class ControlError(Exception):
    """A submit or an abort failed; `str()` is one sentence for the user."""


class UnreachableError(Exception):
    """No compatible engine answered; `str()` is one sentence for the user."""
