"""What a step of plain decodes weighs on the wire, and what reading it makes."""

from collections.abc import Iterator

import msgspec

from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
)
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Decodes, Step
from tests.support.hand_driven import step

NUM_BLOCKS = 512
"""Of each sequence's table: 8,192 tokens."""


def in_columns(num: int) -> Step:
    """A step that takes `num` sequences further; every sixteenth gets a block."""
    seq_ids = range(70_000, 70_000 + num)
    return step(
        9_000,
        decodes=Decodes(
            seq_ids=list(seq_ids),
            new_token_ids=[(seq_id * 7_919) % 128_000 for seq_id in seq_ids],
            text_deltas=[" horizon"] * num,
            new_logprobs=[-1 / seq_id for seq_id in seq_ids],
            new_blocks={seq_id: 100_000 + seq_id for seq_id in seq_ids[::16]},
        ),
    )


def as_vllm_has_it(num: int) -> ExecuteModelRequest:
    """The same step's work in vLLM's own deltas, whose tables are whole."""
    return ExecuteModelRequest(
        [
            SequenceGroupMetadataDelta(
                {seq_id: SequenceDataDelta([9_000], -1.5, 8_190, SequenceStage.DECODE)},
                f"cmpl-{seq_id:032x}",
                {seq_id: list(range(60_000, 60_000 + NUM_BLOCKS))},
                is_prompt=False,
                token_chunk_size=1,
            )
            for seq_id in range(70_000, 70_000 + num)
        ]
    )


def test_a_step_takes_three_hundredths_of_vllms_own_deltas_at_most() -> None:
    columns = len(codec.encode(in_columns(256)))
    assert columns <= 0.03 * len(codec.encode(as_vllm_has_it(256)))


def test_a_decode_adds_no_object_that_is_read() -> None:
    few, many = (parsing.event(codec.encode(in_columns(num))) for num in (16, 256))
    assert sum(1 for _ in structs(few)) == sum(1 for _ in structs(many))


def structs(value: object) -> Iterator[msgspec.Struct]:
    if isinstance(value, msgspec.Struct):
        yield value
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from structs(each)
