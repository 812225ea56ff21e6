"""N-gram drafts: the tokens after an earlier occurrence of the last ones."""

from engine_stub.spec_decode.ngram import continuation


def test_lookup_takes_what_followed_the_longest_match() -> None:
    assert continuation([1, 2, 3, 9, 4, 2, 3, 8, 7, 1, 2, 3], 2) == [9, 4]
    assert continuation([5, 1, 5, 2, 6, 5], 8) == [1, 5, 2, 6, 5]
    assert continuation([1, 2, 3], 4) == []
    assert continuation([1], 4) == []
    assert continuation([1, 1], 4) == [1]
