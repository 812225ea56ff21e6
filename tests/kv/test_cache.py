"""The reducer of KV-cache events, against a plain model of a cache and by hand."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqtop.kv.cache import CachedKvBlock, KvCache, merged_tree
from seqtop.kv.messages import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
    UnknownEvent,
)


def stored(
    hashes: list[int],
    parent: int | None = None,
    *,
    size: int = 2,
    medium: str = "GPU",
    tokens: list[int] | None = None,
    **more: Any,
) -> BlockStored:
    tokens = list(range(size * len(hashes))) if tokens is None else tokens
    return BlockStored(list(hashes), parent, tokens, size, medium=medium, **more)


def cache_after(*events: KvEvent, **options: Any) -> KvCache:
    cache = KvCache(**options)
    for time, event in enumerate(events, start=1):
        cache.apply(EventBatch(float(time), [event]))
    return cache


def block(cache: KvCache, block_hash: int) -> CachedKvBlock:
    return cache.blocks[(-1, block_hash)]


def names(blocks: Iterable[CachedKvBlock]) -> list[object]:
    return [block.key[1] for block in blocks]


def test_a_run_is_a_chain_with_each_blocks_tokens() -> None:
    cache = cache_after(stored([1, 2, 3]), stored([4], 3, tokens=[7, 8], lora_name="poems"))
    assert names(cache.path(block(cache, 4))) == [1, 2, 3, 4]
    assert list(block(cache, 2).token_ids) == [2, 3]
    assert (list(block(cache, 4).token_ids), block(cache, 4).lora) == ([7, 8], "poems")
    assert (cache.num_tokens, cache.num_stored, cache.num_extending) == (8, 4, 1)
    (tree,) = cache.trees(0, 10)
    assert (tree.root, tree.num_blocks, tree.num_tokens) == ((-1, 1), 4, 8)
    assert (block(cache, 3).stored_at, block(cache, 3).last_named_at) == (1.0, 2.0)


def test_tokens_of_blocks_that_were_left_out_are_given_to_nobody() -> None:
    cache = cache_after(stored([1, 3], tokens=[1, 2, 3, 4, 5, 6]))
    assert block(cache, 1).token_ids is None
    assert cache.num_tokens == 4


def test_parents_among_blocks_that_were_left_out_are_unknown() -> None:
    cache = cache_after(
        stored([1]), stored([3, 4], 1, tokens=[1, 2, 3, 4, 5, 6]), stored([5], 4), stored([2], 1)
    )
    for block_hash in (3, 4):
        assert block(cache, block_hash).has_unknown_parent
        assert block(cache, block_hash).parent is None
    assert names(cache.path(block(cache, 5))) == [4, 5]
    assert names(cache.path(block(cache, 2))) == [1, 2]
    assert not block(cache, 5).has_unknown_parent


def test_places_of_blocks_and_the_requests_that_stored_them_are_kept() -> None:
    more: dict[str, Any] = {"locality": "REMOTE", "ownership": "disk", "session_id": "chat"}
    cache = cache_after(stored([1], kv_cache_spec_sliding_window=512, **more))
    one = block(cache, 1)
    assert (one.window, one.locality, one.ownership, one.session_id) == (
        512,
        "REMOTE",
        "disk",
        "chat",
    )


def test_branching_is_told_from_extending() -> None:
    cache = cache_after(stored([1]), stored([2], 1), stored([3], 1), stored([3], 1))
    assert (cache.num_extending, cache.num_branching, cache.num_stored_again) == (2, 1, 1)
    assert names(cache.blocks[key] for key in cache.children((-1, 1))) == [2, 3]


def test_a_block_is_gone_when_its_last_copy_is() -> None:
    cache = cache_after(stored([1]), stored([1]), BlockRemoved([1], medium="GPU"))
    assert block(cache, 1).copies == {"GPU": 1}
    cache.apply(EventBatch(9.0, [BlockRemoved([1], medium="GPU"), BlockRemoved([1], medium="GPU")]))
    assert not cache.blocks
    assert (cache.num_cells, cache.num_trees, cache.num_removed_unknown) == (0, 0, 1)
    assert cache.tiers == {}


def test_tiers_are_places_of_one_block() -> None:
    cache = cache_after(stored([1, 2]), stored([1], medium="CPU"), BlockRemoved([1], medium="GPU"))
    assert block(cache, 1).copies == {"CPU": 1}
    assert {name: tier.num_blocks for name, tier in cache.tiers.items()} == {"GPU": 1, "CPU": 1}
    assert cache.num_tokens == 4
    cache.apply(EventBatch(9.0, [stored([5])]))
    assert names([cache.tiers["GPU"].cells[0]]) == [5], "the first free cell is taken"


def test_removal_without_a_medium_is_of_the_tier_there_is() -> None:
    cache = cache_after(stored([1]), BlockRemoved([1]))
    assert (not cache.blocks, cache.num_removed_unknown) == (True, 0)


def test_the_same_hash_in_two_groups_is_two_blocks() -> None:
    cache = cache_after(
        stored([1], group_idx=0),
        stored([1], group_idx=1, kv_cache_spec_kind="sliding_window"),
        BlockRemoved([1], medium="GPU", group_idx=0),
    )
    assert list(cache.blocks) == [(1, 1)]
    assert cache.blocks[(1, 1)].kind == "sliding_window"


def test_clearing_ends_a_gap_and_forgets_all() -> None:
    cache = cache_after(stored([1]))
    cache.mark_gap("something was lost")
    assert cache.gap == "something was lost"
    cache.apply(EventBatch(2.0, [AllBlocksCleared(), stored([2])]))
    assert (cache.gap, names(cache.blocks.values()), cache.num_cleared) == ("", [2], 1)


def test_too_many_blocks_are_counted_and_forgotten() -> None:
    cache = cache_after(stored([1, 2, 3]), stored([1], medium="CPU"), max_blocks=2)
    assert names(cache.blocks.values()) == [1, 2]
    assert (cache.num_not_shown, cache.num_cells) == (2, 2)
    cache.apply(EventBatch(9.0, [BlockRemoved([2], medium="GPU"), stored([4], 3)]))
    assert names(cache.path(block(cache, 4))) == [4], "its parent is not known"


def test_chains_whose_beginning_is_missing_join_what_comes_before_them() -> None:
    cache = cache_after(stored([3], 2), stored([4], 2), stored([9]))
    assert [tree.root for tree in cache.trees(0, 9)] == [(-1, 2), (-1, 9)]
    cache.apply(EventBatch(5.0, [stored([2], 1)]))
    cache.apply(EventBatch(6.0, [stored([1]), stored([5], 4)]))
    assert [(tree.root, tree.num_blocks) for tree in cache.trees(0, 9)] == [
        ((-1, 1), 5),
        ((-1, 9), 1),
    ]
    assert names(cache.path(block(cache, 4))) == [1, 2, 4]
    assert merged_tree(block(cache, 3).tree).root == (-1, 1)


def test_a_cycle_of_parents_ends() -> None:
    cache = cache_after(stored([1], 2), stored([2], 1), stored([3], 3))
    assert len(cache.path(block(cache, 1))) == 2
    assert names(cache.path(block(cache, 3))) == [3]
    cache.apply(EventBatch(1.0, [BlockRemoved([1, 2, 3], medium="GPU")]))
    assert (cache.num_trees, len(cache.blocks)) == (0, 0)


def test_unknown_kinds_are_counted_by_name_and_not_without_end() -> None:
    cache = cache_after(*[UnknownEvent(f"Kind{number % 50}") for number in range(100)])
    assert len(cache.unknown) == 20
    assert cache.unknown["Kind0"] == 2


HASHES = st.integers(0, 9)
MEDIA = st.sampled_from(["GPU", "CPU"])
EVENTS = st.one_of(
    st.builds(
        lambda hashes, parent, medium: stored(hashes, parent, medium=medium),
        st.lists(HASHES, max_size=4),
        st.none() | HASHES,
        MEDIA,
    ),
    st.builds(
        lambda hashes, medium: BlockRemoved(hashes, medium=medium),
        st.lists(HASHES, max_size=4),
        MEDIA,
    ),
    st.just(AllBlocksCleared()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 25))
def test_events_that_fit_together_keep_the_counts(events: list[KvEvent], max_blocks: int) -> None:
    cache = KvCache(max_blocks=max_blocks)
    copies: Counter[tuple[int | bytes, str]] = Counter()
    for event in events:
        cache.apply(EventBatch(1.0, [event]))
        if isinstance(event, AllBlocksCleared):
            copies.clear()
        elif isinstance(event, BlockStored):
            copies.update((block_hash, event.medium) for block_hash in event.block_hashes)
        else:
            for block_hash in event.block_hashes:
                copies[block_hash, event.medium] -= copies[block_hash, event.medium] > 0
        known = {
            (block.key[1], medium): number
            for block in cache.blocks.values()
            for medium, number in block.copies.items()
        }
        if not cache.num_not_shown:
            assert known == +copies
        assert cache.num_cells == len(known) <= max_blocks
        for name, tier in cache.tiers.items():
            assert tier.num_blocks == sum(medium == name for _, medium in known)
            for cell, held in enumerate(tier.cells):
                assert (held is None) == (cell in tier.free)
                assert held is None or held.cells[name] == cell
        assert cache.num_tokens == sum(block.size for block in cache.blocks.values())
        trees = cache.trees(0, 99)
        assert sum(tree.num_blocks for tree in trees) == len(cache.blocks)
        assert [tree.num_blocks for tree in trees] == sorted(
            (tree.num_blocks for tree in trees), reverse=True
        )
        for block in cache.blocks.values():
            assert cache.tree(merged_tree(block.tree).root) in trees
            if block.parent in cache.blocks:
                assert merged_tree(cache.blocks[block.parent].tree) is merged_tree(block.tree)
                assert block.key in cache.children(block.parent)


def test_token_ids_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqtop.kv.cache.MAX_TOKEN_IDS", 10)
    cache = cache_after(stored([1], size=8), stored([2], 1, size=3), stored([3], 2, size=2))
    assert names(cache.blocks.values()) == [1, 3]
    assert cache.num_not_shown == 1
    cache.apply(EventBatch(4.0, [BlockRemoved([1], medium="GPU"), stored([4], size=8)]))
    assert names(cache.blocks.values()) == [3, 4]


def test_a_long_chain_and_a_cycle_are_followed_to_their_ends() -> None:
    """Nothing recurses, and no step takes time in proportion to the cache."""
    runs = [stored([*range(at, at + 1_000)], at - 1, size=1) for at in range(0, 50_000, 1_000)]
    cache = cache_after(*reversed(runs))
    assert cache.num_trees == 1
    assert len(cache.path(block(cache, 49_999))) == 50_000
    for number in range(50_000):
        cache.apply(EventBatch(1.0, [BlockRemoved([number], medium="GPU")]))
    assert (cache.num_trees, cache.num_tokens, cache.num_cells) == (0, 0, 0)
    cycle = cache_after(stored([1], 2), stored([2], 1), stored([3], 3))
    assert names(cycle.path(block(cycle, 1))) == [2, 1]
    assert names(cycle.path(block(cycle, 3))) == [3]
