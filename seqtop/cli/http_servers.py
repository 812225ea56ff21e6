"""Addresses of llama.cpp's server in place of endpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


def is_http(endpoint: str) -> bool:
    """Returns whether an argument is the address of an HTTP server, and no ZeroMQ endpoint."""
    return endpoint.startswith(("http://", "https://"))


@contextlib.contextmanager
def stream_of(endpoint: str) -> Iterator[str]:
    """Polls a server while the context lasts, if the endpoint is an address of one.

    Yields:
        The endpoint of its stream; that of an engine as it is.

    Raises:
        UnreachableError: The server does not answer, or not as llama.cpp's does.
    """
    if not is_http(endpoint):
        yield endpoint
        return
    from seqtop.llama_cpp.poller import published

    with published(endpoint) as stream:
        yield stream
