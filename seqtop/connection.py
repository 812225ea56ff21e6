"""How a viewer's connection to its engine stands."""

import enum

import msgspec


class ConnectionState(enum.Enum):
    CONNECTING = "connecting"
    """Nothing has been heard of the engine yet."""
    SYNCING = "syncing"
    """Messages were missed (or it has just been found): waiting for a snapshot."""
    LIVE = "live"
    LOST = "lost"
    """The engine has been silent for longer than its heartbeats allow; what is shown is old."""
    STOPPED = "stopped"
    """The engine said goodbye."""
    INCOMPATIBLE = "incompatible"
    """What is publishing there speaks another version of the protocol, or none at all."""
    REFUSED = "refused"
    """The keys of engine and viewer do not fit, or only one of the two has any."""
    REPLAY = "replay"
    """There is no connection: a recording is played."""


class Connection(msgspec.Struct):
    """State of the connection and the figures that say how well it has worked so far."""

    endpoint: str
    state: ConnectionState = ConnectionState.CONNECTING
    detail: str = ""
    """One sentence for the user on why the state is what it is; may be empty when LIVE."""
    num_messages: int = 0
    num_bytes: int = 0
    num_missed: int = 0
    """Messages that gaps in the sequence numbers say were lost on the way."""
    num_resyncs: int = 0
    """Snapshots taken because of a gap, a restart or a message that could not be read."""
    num_errors: int = 0
    """Messages that were refused."""
    last_error: str = ""


class ControlError(Exception):
    """A submit or abort did not happen; `str()` is one sentence for the user."""


class UnreachableError(Exception):
    """No engine answered, or none that can be understood; `str()` is one sentence for the user."""
