"""Sends one command to an engine and waits for the reply."""

import zmq

from seqtop.transport.connection import ControlError
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.endpoints import check, snapshot_endpoint
from seqtop.wire import codec, frames, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Abort, Accepted, Refused, Submit

MAX_REPLY_BYTES = 2**20


def request(
    endpoint: str,
    command: Submit | Abort,
    *,
    curve_keys: ViewerKeys | None = None,
    timeout: float = 2.0,
) -> Accepted:
    """Sends a command to the engine that publishes at `endpoint` and returns its reply.

    Blocks until the reply arrives, so an app calls it on a worker thread.

    Args:
        endpoint: The endpoint of the engine's live stream.
        command: The command to send.
        curve_keys: The viewer's CurveZMQ keys, if the engine requires any.
        timeout: The longest wait in seconds.

    Raises:
        ControlError: The engine refused, did not reply in time, or its reply is malformed.
        EndpointError: The endpoint is malformed.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.maxmsgsize = MAX_REPLY_BYTES
        # libzmq removes the connection of a refused handshake, and a send without one waits.
        socket.sndtimeo = int(timeout * 1000)
        if curve_keys is not None:
            curve_keys.secure(socket)
        socket.connect(snapshot_endpoint(check(endpoint)))
        no_answer = f"the engine did not answer within {timeout:g} s"
        try:
            socket.send(codec.encode(command))
        except zmq.Again:
            raise ControlError(no_answer) from None
        if not socket.poll(int(timeout * 1000)):
            raise ControlError(no_answer)
        try:
            parts = socket.recv_multipart(copy=False)
            frame = frames.unpack_reply([part.buffer for part in parts])
            reply = parsing.reply(frame.payload)
        except WireError as error:
            raise ControlError(f"the engine's answer cannot be read: {error}") from error
    if isinstance(reply, Accepted):
        return reply
    if isinstance(reply, Refused):
        raise ControlError(reply.error)
    raise ControlError("the engine answered another request")
