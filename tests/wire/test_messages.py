"""The size of a step of plain decodes on the wire."""

from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
)
from seqtop.wire import codec
from seqtop.wire.messages import Step
from tests.support.events import step, update

NUM_BLOCKS = 512
"""Of each sequence's table: 8,192 tokens."""


def delta(seq_id: int, table: list[int]) -> SequenceGroupMetadataDelta:
    data = SequenceDataDelta([9_000], -1.5, 8_190, SequenceStage.DECODE)
    return SequenceGroupMetadataDelta(
        {seq_id: data}, f"cmpl-{seq_id:032x}", {seq_id: table} if table else {}, is_prompt=False,
        token_chunk_size=1, state=None,
    )  # fmt: skip


def decoding(num: int) -> Step:
    """Returns a step in which `num` sequences decode; every sixteenth gets a block."""
    seq_ids = range(70_000, 70_000 + num)
    return step(
        9_000,
        *(delta(seq_id, []) for seq_id in seq_ids),
        sequences=[
            update(
                seq_id,
                tokens=[(seq_id * 7_919) % 128_000],
                text=" horizon",
                logprobs=[-1 / seq_id],
                blocks=[] if seq_id % 16 else [100_000 + seq_id],
            )
            for seq_id in seq_ids
        ],
    )


def test_a_step_takes_a_tenth_of_vllms_own_deltas_at_most() -> None:
    table = list(range(60_000, 60_000 + NUM_BLOCKS))
    deltas = [delta(seq_id, table) for seq_id in range(70_000, 70_000 + 256)]
    of_vllm = len(codec.encode(ExecuteModelRequest([*deltas])))
    assert len(codec.encode(decoding(256))) <= of_vllm / 10
