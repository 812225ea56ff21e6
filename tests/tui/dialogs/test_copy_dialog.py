"""What the clipboard gets of a request with a hostile id and text."""

import json

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.tui.dialogs.copy_dialog import copies
from seqtop.wire.messages import SequenceUpdate
from tests.support.hand_driven import arrival, engine_info, step


def test_no_control_character_reaches_the_clipboard() -> None:
    state = EngineState()
    name = "r\x1b[201~\r\nrm -rf /\x9b"
    state.apply(engine_info())
    state.apply(msgspec.structs.replace(arrival(1), request_id=name))
    state.apply(
        step(
            0,
            sequences=[
                SequenceUpdate(
                    seq_id=1,
                    status=SequenceStatus.RUNNING,
                    num_computed_tokens=3,
                    text_delta="a\n\tb\x1b[201~\r\nc",
                )
            ],
        )
    )
    found = copies(state.requests[name], state.sequences[1], 0.0)
    assert found["request id"] == "r␛[201~↵rm -rf /\N{REPLACEMENT CHARACTER}"
    assert found["text"] == "a\n\tb␛[201~\nc"
    assert found["row as JSON"].isprintable()
    assert name in json.loads(found["row as JSON"]).values()
