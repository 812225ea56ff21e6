"""The hashes of blocks, and common prefixes of tables."""

from engine_stub.core.block_table import BlockTable, common_prefix
from seqtop.sequence import LoRARequest, Sequence, token_inputs


def hashes(token_ids: list[int], num_blocks: int) -> list[bytes]:
    table = BlockTable()
    table.hash_blocks(Sequence(0, token_inputs(token_ids), 4), num_blocks)
    return table.hashes


def test_a_hash_covers_all_tokens_up_to_the_end_of_its_block() -> None:
    expected = hashes([1, 2, 3, 4, 5, 6, 7, 8, 9], 2)
    assert len(expected) == 2
    assert hashes([1, 2, 3, 4, 5, 6, 7, 8], 2) == expected
    assert hashes([1, 2, 3, 4, 5, 6, 7, 0], 2)[0] == expected[0]
    assert hashes([1, 2, 3, 4, 5, 6, 7, 0], 2)[1] != expected[1]
    assert hashes([0, 2, 3, 4, 5, 6, 7, 8], 2)[1] != expected[1]


def test_hashes_are_extended_not_computed_again() -> None:
    table = BlockTable()
    seq = Sequence(0, token_inputs([1, 2, 3, 4, 5, 6, 7, 8]), 4)
    table.hash_blocks(seq, 1)
    (first,) = table.hashes
    table.hash_blocks(seq, 2)
    assert table.hashes[0] is first
    assert len(table.hashes) == 2


def test_an_adapter_changes_every_hash() -> None:
    plain = hashes([1, 2, 3, 4, 5, 6, 7, 8], 2)
    table = BlockTable()
    lora = LoRARequest("l", 1, "/l")
    seq = Sequence(0, token_inputs([1, 2, 3, 4, 5, 6, 7, 8]), 4, lora_request=lora)
    table.hash_blocks(seq, 2)
    assert not {*table.hashes} & {*plain}


def test_common_prefix() -> None:
    assert common_prefix([[1, 2, 3], [1, 2, 4], [1, 2]]) == [1, 2]
    assert common_prefix([[1, 2], [2, 1]]) == []
    assert common_prefix([[1, 2]]) == [1, 2]
