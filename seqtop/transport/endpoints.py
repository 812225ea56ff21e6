"""ZeroMQ endpoints: what may be bound, and where a live stream's snapshots are served."""

from ipaddress import ip_address
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5557"


class EndpointError(ValueError):
    """The endpoint cannot be used as asked; `str()` is one sentence for the user."""


def check(endpoint: str) -> str:
    """Return `endpoint` if it is one that ZeroMQ could connect to.

    Raises:
        EndpointError: it is not of the form `tcp://HOST:PORT` or `ipc://PATH`.
    """
    scheme, separator, address = endpoint.partition("://")
    if not separator or scheme not in {"tcp", "ipc", "inproc"} or not address:
        raise EndpointError(
            f"{endpoint!r} is not an endpoint; write tcp://HOST:PORT or ipc:///PATH"
        )
    if scheme == "tcp":
        _host_and_port(endpoint)
    return endpoint


def snapshot_endpoint(endpoint: str) -> str:
    """Where an engine that publishes at `endpoint` answers snapshot requests by convention.

    That is the next port for TCP, and the same name with `.snapshot` appended for IPC.
    """
    if endpoint.startswith("tcp://"):
        host, port = _host_and_port(endpoint)
        return f"tcp://{host}:{port + 1}"
    return f"{endpoint}.snapshot"


def rank_endpoint(endpoint: str, rank: int) -> str:
    """Where, by convention, data-parallel rank `rank` publishes if rank 0 does at `endpoint`.

    With TCP that is two ports higher for each rank, as a stream takes two; with IPC the rank is
    appended to the path of all but rank 0.

    Raises:
        EndpointError: `endpoint` is malformed, or there is no port for that rank.
    """
    check(endpoint)
    if not rank:
        return endpoint
    if endpoint.startswith("tcp://"):
        address, _, port = endpoint.rpartition(":")
        return check(f"{address}:{int(port) + 2 * rank}")
    return f"{endpoint}.dp{rank}"


def check_bind(endpoint: str, *, insecure: bool, has_keys: bool = False) -> str:
    """Return `endpoint` if an engine may publish there.

    Args:
        has_keys: Only holders of keys will be let in.

    Raises:
        EndpointError: it is malformed, or reachable from other machines although there are no
            keys and `insecure` is not set: the stream carries prompts.
    """
    check(endpoint)
    if not (insecure or has_keys) and endpoint.startswith("tcp://"):
        host, _ = _host_and_port(endpoint)
        if not is_loopback(host):
            raise EndpointError(
                f"{endpoint} can be reached from other machines, and whoever reaches it reads"
                " every prompt; give keys (see seqtop keygen), bind to 127.0.0.1 and tunnel,"
                " or pass --insecure"
            )
    return endpoint


def _host_and_port(endpoint: str) -> tuple[str, int]:
    try:
        host, _, port = urlsplit(endpoint).netloc.rpartition(":")
    except ValueError:  # brackets that do not hold an IPv6 address
        host = port = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise EndpointError(f"{endpoint!r} needs a host and a port between 1 and 65534")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
