"""Reads the tag of a message without decoding the message."""


def tag(payload: bytes | memoryview) -> str:
    """Returns the tag of a message.

    Empty if the payload does not start with an array of up to 15 elements and a string of up to 31
    bytes. Every command and `EngineStopped` start so in their shortest encoding.
    """
    start = bytes(payload[:33])
    if len(start) < 2 or start[0] >> 4 != 0x9 or start[1] >> 5 != 0b101:
        return ""
    return start[2 : 2 + (start[1] & 0x1F)].decode("ascii", "replace")
