"""The base class of all errors of the wire format."""


class WireError(ValueError):
    """A value that cannot be encoded, or bytes that cannot be decoded.

    The message names the type, the field if it is known, and the reason. It quotes no text of a
    request.
    """
