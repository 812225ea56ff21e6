"""Each direction of the protocol has its own messages."""

from collections.abc import Callable

import pytest

from seqtop.wire import codec, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Abort, Heartbeat, Message, Refused

MESSAGES: dict[Callable[[bytes], object], Message] = {
    parsing.event: Heartbeat(time=1.0, step=2),
    parsing.command: Abort(request_id="one"),
    parsing.reply: Refused(error="no"),
}


@pytest.mark.parametrize("parse", MESSAGES)
def test_a_message_of_its_direction_comes_back(parse: Callable[[bytes], object]) -> None:
    assert parse(codec.encode(MESSAGES[parse])) == MESSAGES[parse]


@pytest.mark.parametrize("parse", MESSAGES)
def test_messages_of_other_directions_are_refused(parse: Callable[[bytes], object]) -> None:
    for other, message in MESSAGES.items():
        if other is not parse:
            with pytest.raises(WireError):
                parse(codec.encode(message))
    with pytest.raises(WireError):
        parse(b"\xc1")
