"""Finished requests, which states share, and late events about them."""

from seqtop.sequence import SequenceStatus
from seqtop.state.freeze import freeze
from seqtop.wire import codec
from seqtop.wire.messages import SequenceUpdate
from tests.support.hand_driven import step
from tests.support.recording import encoded, fed


def test_a_late_event_does_not_change_a_finished_request_of_another_state() -> None:
    state = fed(encoded(3, 60), max_finished=1_000)
    seq_id = state.requests[state.finished[0]].seq_ids[0]
    frozen = freeze(state)
    before = codec.encode(frozen.sequences[seq_id])
    update = SequenceUpdate(
        seq_id=seq_id, status=SequenceStatus.RUNNING, num_computed_tokens=1, text_delta="boo"
    )
    state.apply(step(99, sequences=[update]))
    assert state.sequences[seq_id].text.endswith("boo")
    assert codec.encode(frozen.sequences[seq_id]) == before
