"""The causes of prefix misses, from a history that is written by hand."""

from typing import Any

import pytest

from seqtop.prefix_cache.prefix_history import PrefixHistory, PrefixLookup

SIZE = 4


def lookup(*hashes: bytes, hits: int = 0, rest: int = 1, **more: Any) -> PrefixLookup:
    """A sequence of `hits` found blocks, the blocks of `hashes`, and `rest` tokens."""
    fields: dict[str, Any] = {"token_hashes": hashes, "is_cacheable": True} | more
    num_tokens = (hits + len(hashes)) * SIZE + rest
    return PrefixLookup(SIZE, num_tokens, hits * SIZE, hashes, **fields)


def misses(
    history: PrefixHistory, *hashes: bytes, step: int = 9, name: str = "now", **more: Any
) -> list[tuple[object, ...]]:
    (found,) = history.look_up(step, name, [lookup(*hashes, **more)])
    return [(miss.cause, miss.num_tokens, miss.step, miss.request_id) for miss in found]


LAST = ("partial_block", 1, None, None)


def test_tokens_that_nobody_had_are_new() -> None:
    assert misses(PrefixHistory(), b"a", b"b") == [("new_tokens", 8, None, None), LAST]


def test_a_whole_last_block_has_to_be_computed_too() -> None:
    assert misses(PrefixHistory(), rest=4) == [("partial_block", 4, None, None)]
    assert misses(PrefixHistory(), b"a", rest=4) == [
        ("new_tokens", 4, None, None),
        ("partial_block", 4, None, None),
    ]


def test_evicted_blocks_have_the_step_and_the_request_that_got_them() -> None:
    history = PrefixHistory()
    history.store(1, "one", b"a", b"a")
    history.store(1, "one", b"b", b"b")
    history.evict(3, "two", b"b")
    history.evict(4, None, b"a")
    assert misses(history, b"a", b"b", b"c") == [
        ("evicted", 4, 4, None),
        ("evicted", 4, 3, "two"),
        ("new_tokens", 4, None, None),
        LAST,
    ]
    # Stored again, it would have been found.
    history.store(10, "now", b"a", b"a")
    assert misses(history, b"b", hits=1)[0] == ("evicted", 4, 3, "two")


def test_a_cache_that_is_emptied_evicts_for_no_request() -> None:
    history = PrefixHistory()
    history.store(1, "one", b"a", b"a")
    history.store(1, "one", b"b", b"b")
    history.evict(2, "two", b"b")
    history.evict_all(5)
    assert misses(history, b"a", b"b") == [
        ("evicted", 4, 5, None),
        ("evicted", 4, 2, "two"),
        LAST,
    ]


def test_a_request_that_has_not_stored_its_blocks_yet_is_named() -> None:
    history = PrefixHistory()
    assert misses(history, b"a", name="first", step=7)[0] == ("new_tokens", 4, None, None)
    assert misses(history, b"a", name="next")[0] == ("not_stored", 4, 7, "first")


def test_sequences_of_one_request_do_not_count_for_one_another() -> None:
    found = PrefixHistory().look_up(1, "beams", [lookup(b"a"), lookup(b"a", b"b")])
    assert [miss[0].cause for miss in found] == ["new_tokens", "new_tokens"]


def test_the_same_tokens_with_other_extra_keys() -> None:
    history = PrefixHistory()
    history.store(1, "plain", b"a", b"a")
    salted: dict[str, Any] = {"token_hashes": (b"a", b"b")}
    assert misses(history, b"a+salt", b"b+salt", name="salted", **salted) == [
        ("extra_keys", 4, None, "plain"),
        ("new_tokens", 4, None, None),
        LAST,
    ]
    assert misses(history, b"b")[0] == ("extra_keys", 4, None, "salted")
    history.store(10, "salted", b"c+salt", b"c")
    assert misses(history, b"c+other", token_hashes=(b"c",))[0] == (
        "extra_keys", 4, None, "salted",
    )  # fmt: skip
    assert misses(history, b"c+other", token_hashes=(b"c",))[0][0] == "not_stored"


def test_a_cached_block_is_missed_only_behind_another() -> None:
    history = PrefixHistory()
    history.store(1, "one", b"b", b"b")
    assert misses(history, b"a", b"b") == [
        ("new_tokens", 4, None, None),
        ("broken_prefix", 4, None, None),
        LAST,
    ]
    assert misses(history, b"b")[0] == ("unknown", 4, None, None), "no reason was observed"


def test_a_request_that_may_not_use_the_cache() -> None:
    history = PrefixHistory()
    assert misses(history, b"a", is_cacheable=False) == [("not_cacheable", 5, None, None)]
    assert misses(history, b"a", name="other")[0][0] == "not_stored"


def test_forgotten_blocks_are_unknown() -> None:
    history = PrefixHistory(max_blocks=2)
    for number, name in enumerate((b"a", b"b", b"c")):
        history.store(number, "one", name, name)
        history.evict(number, "two", name)
    assert misses(history, b"c", name="again")[0] == ("evicted", 4, 2, "two")
    assert misses(history, b"a")[0] == ("unknown", 4, 1, None)
    history.forget(12)
    assert misses(history, b"c", step=12)[0] == ("unknown", 4, 12, None)
    history.store(13, "salted", b"d+salt", b"d")
    history.forget(14)
    assert misses(history, b"d", step=14)[0] == ("unknown", 4, 14, None), "nor are its tokens known"


def test_the_blocks_that_were_not_met_for_longest_are_forgotten() -> None:
    history = PrefixHistory(max_blocks=2)
    history.store(1, "one", b"a", b"a")
    history.store(2, "one", b"b", b"b")
    history.evict(3, "two", b"a")
    history.store(4, "one", b"c", b"c")
    assert misses(history, b"a")[0] == ("evicted", 4, 3, "two")
    assert misses(history, b"b")[0] == ("unknown", 4, 3, None)


def test_a_history_that_began_late_knows_no_new_tokens() -> None:
    assert misses(PrefixHistory(known_since=0), b"a")[0] == ("unknown", 4, 0, None)


def test_blocks_beyond_the_hashes_are_unknown() -> None:
    cut = PrefixLookup(SIZE, 4 * SIZE + 2, SIZE, [b"b"], [b"b"])
    (found,) = PrefixHistory().look_up(1, "long", [cut])
    assert [(miss.cause, miss.num_tokens) for miss in found] == [
        ("new_tokens", 4),
        ("unknown", 8),
        ("partial_block", 2),
    ]


def test_many_runs_are_added_up_by_cause() -> None:
    history = PrefixHistory()
    hashes = [bytes([number]) for number in range(100)]
    for number, block_hash in enumerate(hashes):
        history.store(0, "one", block_hash, block_hash)
        history.evict(number, "two", block_hash)
    found = misses(history, *hashes)
    assert found[:32] == [("evicted", 4, number, "two") for number in range(32)]
    assert found[32:] == [("evicted", 4 * 68, None, None), LAST]
    hashes[-5], hashes[-4], hashes[-1] = b"new", b"other", b"third"
    found = misses(history, *hashes)
    assert found[32:] == [
        ("evicted", 4 * 65, None, None),
        ("new_tokens", 12, None, None),
        LAST,
    ]


@pytest.mark.parametrize("hits", [0, 3])
def test_the_tokens_of_a_result_add_up(hits: int) -> None:
    (found,) = PrefixHistory().look_up(1, "one", [lookup(b"a", b"b", hits=hits, rest=3)])
    assert sum(miss.num_tokens for miss in found) == 2 * SIZE + 3
