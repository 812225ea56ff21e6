"""The one exception of the wire."""


class WireError(ValueError):
    """Something cannot be put on the wire, or what came from it cannot be understood.

    The message names the type concerned, the field where it is known, and what is wrong.
    """
