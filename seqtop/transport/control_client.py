"""Ask an engine to do something: one question, one answer."""

import zmq

from seqtop.connection import ControlError
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.endpoints import check, snapshot_endpoint
from seqtop.wire import codec, frames, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Abort, Accepted, Refused, Submit

MAX_REPLY_BYTES = 2**20


def ask(
    endpoint: str,
    command: Submit | Abort,
    *,
    keys: ViewerKeys | None = None,
    timeout: float = 2.0,
) -> Accepted:
    """Send `command` to the engine that publishes at `endpoint` and wait for its answer.

    Blocks for up to `timeout` seconds, so an app calls it off its own thread.

    Raises:
        ControlError: the engine refused, did not answer in time or answered nonsense.
        EndpointError: `endpoint` is malformed.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.maxmsgsize = MAX_REPLY_BYTES
        if keys is not None:
            keys.secure(socket)
        socket.connect(snapshot_endpoint(check(endpoint)))
        socket.send(codec.encode(command))
        if not socket.poll(int(timeout * 1000)):
            raise ControlError(f"the engine did not answer within {timeout:g} s")
        try:
            reply = parsing.reply(*frames.unseal(socket.recv_multipart(), 1))
        except WireError as error:
            raise ControlError(f"the engine's answer cannot be read: {error}") from error
    if isinstance(reply, Accepted):
        return reply
    if isinstance(reply, Refused):
        raise ControlError(reply.error)
    raise ControlError("the engine answered another question")
