"""Token hashes of a sequence's blocks."""

from seqtop.prefix_cache.token_hashes import TokenHashes

TOKENS = [7, 8, 9, 7, 8, 9, 1, 2]


def test_a_hash_covers_the_tokens_of_its_block_and_those_before() -> None:
    a, b, c, d = TokenHashes().of_blocks(TOKENS, 2, 0, [b"w", b"x", b"y", b"z"])
    assert len({a, b, c, d}) == 4
    same = TokenHashes().of_blocks([7, 8, 9, 7, 8, 8], 2, 0, [b"1", b"2", b"3"])
    assert [*same][:2] == [a, b]
    assert same[2] != c


def test_a_part_of_the_blocks_has_the_same_hashes() -> None:
    whole = TokenHashes().of_blocks(TOKENS, 2, 0, [b""] * 4)
    hashes = TokenHashes()
    assert hashes.of_blocks(TOKENS, 2, 2, [b""]) == whole[2:3]
    assert hashes.of_blocks(TOKENS, 2, 1, [b""] * 3) == whole[1:]
    assert hashes.of_blocks(TOKENS, 2, 0, []) == []


def test_without_the_tokens_the_hashes_are_those_of_the_engine() -> None:
    hashes = TokenHashes()
    assert hashes.of_blocks([], 2, 0, [b"x"]) == [b"x"]
    assert hashes.of_blocks(TOKENS[:7], 2, 2, [b"x", b"y"]) == [b"x", b"y"]
