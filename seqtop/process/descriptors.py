"""The limit on the process's file descriptors.

libzmq ends the process where none is left for a socket, so the limit is looked at before.
"""

import contextlib
import math
import resource


def raise_limit(wanted: int) -> float:
    """Raises the limit on open descriptors to `wanted`, as far as the system allows it.

    Returns:
        The limit, which is infinite if there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return math.inf
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
