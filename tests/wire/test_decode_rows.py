"""One sequence's elements in the columns of a step."""

from seqtop.wire.decode_rows import Decode, decode_of, num_decodes
from seqtop.wire.messages import Decodes
from tests.support.reducer_events import step


def test_one_sequence_is_found_in_the_columns() -> None:
    columns = Decodes(
        seq_ids=[4, 7],
        new_token_ids=[5, 6],
        text_deltas=["a", "b"],
        new_logprobs=[-0.5, -1.5],
        new_blocks={7: 30},
    )
    event = step(1, decodes=columns)
    assert decode_of(event, 7) == Decode(7, 6, "b", -1.5, 30)
    assert decode_of(event, 4) == Decode(4, 5, "a", -0.5, None)
    assert decode_of(event, 5) is decode_of(step(1), 7) is None
    assert (num_decodes(event), num_decodes(step(1))) == (2, 0)
