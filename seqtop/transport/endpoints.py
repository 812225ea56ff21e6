"""ZeroMQ endpoints: validation, and the endpoints derived from that of a live stream."""

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "tcp://127.0.0.1:5557"
_HOST_AND_PORT = re.compile(r"(\[[^\]\s]+\]|[^\s:/\[\]]+):[0-9]+")


class EndpointError(ValueError):
    """An endpoint cannot be used. The message is one sentence for the user."""


def with_scheme(text: str) -> str:
    """Returns `text` with `tcp://` before it if it is of the form `HOST:PORT`."""
    return f"tcp://{text}" if _HOST_AND_PORT.fullmatch(text) else text


def check(endpoint: str) -> str:
    """Returns the endpoint if ZeroMQ can connect to it.

    Raises:
        EndpointError: It is not of the form `tcp://HOST:PORT` or `ipc://PATH`.
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
    """Returns the endpoint for requests to an engine that publishes at `endpoint`.

    By convention that is the next port for TCP, and the path with `.snapshot` appended for IPC.
    """
    if endpoint.startswith("tcp://"):
        host, port = _host_and_port(endpoint)
        return f"tcp://{host}:{port + 1}"
    return f"{endpoint}.snapshot"


def rank_endpoint(endpoint: str, rank: int) -> str:
    """Returns the endpoint of a data-parallel rank, given that of rank 0.

    By convention, each rank is two ports higher for TCP, as a stream takes two ports. For IPC,
    `.dp<rank>` is appended to the path of all ranks but 0.

    Raises:
        EndpointError: The endpoint is malformed, or there is no port for that rank.
    """
    check(endpoint)
    if not rank:
        return endpoint
    if endpoint.startswith("tcp://"):
        address, _, port = endpoint.rpartition(":")
        return check(f"{address}:{int(port) + 2 * rank}")
    return f"{endpoint}.dp{rank}"


def with_port(endpoint: str, port: int | None) -> str:
    """Returns a TCP endpoint with another port; any other, or without a port, as it is."""
    if port is None or not endpoint.startswith("tcp://"):
        return endpoint
    return f"{endpoint.rpartition(':')[0]}:{port}"


def reached_at(bind: str, host: str) -> str | None:
    """Returns the endpoint at which another machine reaches what is bound there.

    Args:
        bind: The endpoint that an engine binds.
        host: The address of its machine.

    Returns:
        `None` if `bind` is no TCP endpoint, or only its own machine reaches it.
    """
    try:
        bound_host, port = _host_and_port(bind)
    except EndpointError:
        return None
    if not bind.startswith("tcp://") or is_loopback(bound_host):
        return None
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def local_endpoint(endpoint: str) -> str:
    """Returns the endpoint to connect to on the machine of an engine that binds `endpoint`."""
    any_interface = re.fullmatch(r"tcp://(\*|0\.0\.0\.0|\[::\])(:\d+)", endpoint)
    if any_interface is None:
        return endpoint
    host = "[::1]" if any_interface[1] == "[::]" else "127.0.0.1"
    return f"tcp://{host}{any_interface[2]}"


def check_bind(
    endpoint: str, *, insecure: bool, has_keys: bool = False, allow: str = "pass --insecure"
) -> str:
    """Returns the endpoint if an engine may publish there.

    Args:
        endpoint: The endpoint to check.
        insecure: Allows other machines to connect without keys.
        has_keys: True if only holders of CurveZMQ keys are admitted.
        allow: The way to set `insecure`, for the message.

    Raises:
        EndpointError: It is malformed, or it is reachable from other machines although there are
            no keys and `insecure` is not set: the stream carries prompts.
    """
    check(endpoint)
    if not (insecure or has_keys) and endpoint.startswith("tcp://"):
        host, _ = _host_and_port(endpoint)
        if not is_loopback(host):
            raise EndpointError(
                f"{endpoint} can be reached from other machines, which could then read"
                " every prompt; give keys (see seqtop keygen), bind to 127.0.0.1 and tunnel,"
                f" or {allow}"
            )
    return endpoint


def _host_and_port(endpoint: str) -> tuple[str, int]:
    try:
        host, _, port = urlsplit(endpoint).netloc.rpartition(":")
    except ValueError:  # brackets without an IPv6 address
        host = port = ""
    if not host or not port.isdecimal() or not 0 < int(port) < 65535:
        raise EndpointError(f"{endpoint!r} needs a host and a port between 1 and 65534")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
