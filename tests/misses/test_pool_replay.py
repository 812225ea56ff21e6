"""The repeated pool of runs that are written by hand: what it finds, and which blocks it takes."""

from typing import Any

import pytest

from seqtop.misses.cache_misses import CacheMisses, Needed
from seqtop.misses.pool_replay import GROWTH, PoolReplay, unknown_reason
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import CachedBlock
from seqtop.wire.arrays import Ints
from tests.support.events import engine_info
from tests.support.scripted_cache import ScriptedCache, missed

A = [1, 2, 3, 4, 5, 6, 7, 8, 9]
"""A prompt of two blocks and one token."""


def pool_of(cache: ScriptedCache) -> PoolReplay:
    assert cache.misses._pool is not None
    return cache.misses._pool


@pytest.mark.parametrize(
    ("num_gpu_blocks", "num_reserved_blocks", "usable"),
    [(10, 0, 10), (10, 1, 9), (10, -3, 10), (10, 12, 1), (1, 0, 1), (1, 1, 1)],
)
def test_the_pool_has_the_blocks_that_are_not_reserved(
    num_gpu_blocks: int, num_reserved_blocks: int, usable: int
) -> None:
    cache = ScriptedCache(num_gpu_blocks=num_gpu_blocks, num_reserved_blocks=num_reserved_blocks)
    sizes = tuple(usable + usable * percent // 100 for percent in GROWTH)
    assert pool_of(cache).pools.sizes == sizes
    points = cache.misses.curve(cache.misses.totals())
    assert [point.num_gpu_blocks - num_gpu_blocks for point in points] == [
        size - usable for size in sizes
    ]


@pytest.mark.parametrize(
    ("fields", "is_known"),
    [
        ({"num_gpu_blocks": 1, "block_size": 1}, True),
        ({"num_gpu_blocks": 2**31}, True),
        ({"num_gpu_blocks": 2**31 + 1}, False),
        ({"num_gpu_blocks": 0}, False),
        ({"block_size": 0}, False),
        ({"kv_cache_groups": ["full"]}, True),
        ({"kv_cache_groups": ["full", "window"]}, False),
        ({"redacted": True}, False),
    ],
)
def test_the_limits_of_pools_that_are_repeated(fields: dict[str, Any], is_known: bool) -> None:
    assert (unknown_reason(engine_info(**fields)) == "") == is_known


@pytest.mark.parametrize(
    ("engine", "finds"),
    [("engine_stub 0.1.0", False), ("vLLM 0.33.0", True)],
)
def test_vllm_caches_what_is_scheduled_and_others_what_is_computed(
    engine: str, finds: bool
) -> None:
    """Two requests with one prompt are admitted in one step."""
    cache = ScriptedCache(engine=engine)
    cache.arrive("a", A)
    cache.arrive("b", A)
    again = (
        cache.admit("b", [0, 1, 3], missed("partial_block", 1), cached=8)
        if finds
        else cache.admit(
            "b", [3, 4, 5], missed("not_stored", 8, 0, "a"), missed("partial_block", 1)
        )
    )
    cache.step(
        cache.admit("a", [0, 1, 2], missed("new_tokens", 8), missed("partial_block", 1)), again
    )
    totals = cache.misses.totals()
    assert totals[:8] == (2, 4, 2 if finds else 0, 0, 2, 0 if finds else 2, 0, 0)
    assert pool_of(cache).num_taken == (4 if finds else 6)


@pytest.mark.parametrize(
    ("engine", "found", "needed"),
    [("engine_stub 0.1.0", 4, []), ("vLLM 0.33.0", 0, [Needed(1, 30)])],
)
def test_vllm_takes_blocks_without_content_in_their_turn(
    engine: str, found: int, needed: list[Needed]
) -> None:
    cache = ScriptedCache(engine=engine, num_gpu_blocks=4)
    cache.arrive("a", A[:5])
    cache.step(cache.admit("a", [0, 1], missed("new_tokens", 4), missed("partial_block", 1)))
    cache.step(cache.end("a"))
    cache.arrive("c", [99])
    cache.step(cache.admit("c", [2], missed("partial_block", 1)))
    cache.step(cache.end("c"))
    cache.arrive("b", [20] * 9)
    cache.step(cache.admit("b", [3, 1, 2], missed("new_tokens", 8), missed("partial_block", 1)))
    cache.arrive("again", A[:5])
    gone = [missed("evicted", 4, 4, "b")] if needed else []
    cache.step(
        cache.admit("again", [0], *gone, missed("partial_block", 1), cached=found, num_tokens=1)
    )
    assert cache.misses.lookups[-1].needed == needed
    assert cache.misses.totals().num_differing == 0


def test_blocks_are_taken_once_however_many_share_them() -> None:
    """Each of these is followed by the blocks that have been taken from the pool up to then."""
    cache = ScriptedCache(num_gpu_blocks=30)
    for name in "abcdef":
        cache.arrive(name, A)
    new = missed("new_tokens", 8), missed("partial_block", 1)
    cache.step(cache.admit("a", [0, 1, 2], *new))
    assert pool_of(cache).num_taken == 3
    cache.step(cache.admit("b", [0, 1, 3], missed("partial_block", 1), cached=8))
    assert pool_of(cache).num_taken == 4
    cache.step(cache.run("a", 4, new_blocks=[4]), cache.run("b", 4, new_blocks=[5]))
    assert pool_of(cache).num_taken == 6
    cache.step(cache.run("b", block_table=[0, 1, 3, 5]))  # the same table
    assert pool_of(cache).num_taken == 6
    cache.step(cache.run("b", block_table=[0, 6, 3, 5]))  # one block is another one
    assert pool_of(cache).num_taken == 7
    cache.step(cache.end("a"))  # [2, 4] are free, and [1]; [0] is not
    preemption, update = cache.preempt("b")
    # In one step, its blocks go to another request.
    cache.step(
        update,
        cache.admit("c", [0, 6, 5], missed("partial_block", 1), cached=8),
        preemptions=[preemption],
    )
    assert pool_of(cache).num_taken == 10 - 2
    cache.abort("c")
    cache.step(cache.admit("d", [0, 1, 2], *new))
    assert pool_of(cache).num_taken == 11
    # Two are admitted and end in one step; their tables are not known, and are not shared.
    ended = {"status": SequenceStatus.FINISHED_STOPPED}
    cache.step(
        cache.admit("e", [], missed("partial_block", 1), cached=8, **ended),
        cache.admit("f", [], missed("partial_block", 1), cached=8, **ended),
    )
    assert pool_of(cache).num_taken == 11 + 1 + 1


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac"])
def test_a_shared_block_is_in_use_until_its_last_request_ends(order: str) -> None:
    cache = ScriptedCache()
    for number, name in enumerate("abcd"):
        cache.arrive(name, A)
        new = [] if number else [missed("new_tokens", 8)]
        cache.step(
            cache.admit(
                name, [0, 1, 2 + number], *new, missed("partial_block", 1), cached=8 * (number > 0)
            )
        )
    pool = pool_of(cache)
    contents = [*pool.full_hashes(1)]
    for name in order:
        assert [pool.pools.holds(content) for content in contents] == [True, True]
        cache.step(cache.end(name))
    assert [pool.pools.holds(content) for content in contents] == [False, False]
    assert [pool.has(content) for content in contents] == [True, True]


def test_found_blocks_need_not_be_computed() -> None:
    cache = ScriptedCache()
    cache.arrive("a", A)
    cache.arrive("b", A)
    cache.step(cache.admit("a", [0, 1, 2], missed("new_tokens", 8), missed("partial_block", 1)))
    contents = [*pool_of(cache).full_hashes(1)]
    cache.step(cache.end("a"))
    cache.step(cache.admit("b", [0, 1, 2], missed("partial_block", 1), cached=8))
    assert pool_of(cache).first_sizes(contents) == [0, 0]
    cache.step(cache.end("b"))
    assert pool_of(cache).first_sizes(contents) == [0, 0]


def test_a_new_table_is_filled_again() -> None:
    """A sequence that is swapped in has other blocks, with the same contents."""
    cache = ScriptedCache()
    cache.arrive("a", A)
    cache.step(cache.admit("a", [0, 1, 2], missed("new_tokens", 8), missed("partial_block", 1)))
    pool, sequence = pool_of(cache), cache.state.sequences[1]
    contents = [*pool.full_hashes(1)]
    assert len(contents) == 2
    cache.step(cache.run("a", 0, block_table=[5, 6, 7]))
    assert pool.full_hashes(1) == contents
    assert [pool.has(content) for content in contents] == [True, True]
    pool.pools.use(pool.pools.sizes[-1])  # so that nothing is left but what is in use
    assert [pool.has(content) for content in contents] == [True, True]
    # More tokens are computed than are known.
    cache.step(cache.run("a", 40))
    assert pool.full_hashes(1) == contents
    assert pool.full_hashes(77) == ()
    cache.step(cache.end("a"))
    assert pool.first_sizes(contents) == [0, 0]
    assert pool.first_sizes([b"another.", *contents]) == [None, None, None]
    assert pool.hashes(sequence, 1) == contents[:1]
    assert pool.hashes(sequence, 2) == pool.hashes(sequence, 3) == contents


def test_a_block_is_found_when_it_is_full_and_computed() -> None:
    cache = ScriptedCache()
    cache.arrive("a", A)
    new = missed("new_tokens", 8), missed("partial_block", 1)
    cache.step(cache.admit("a", [0, 1, 2], *new, num_tokens=7))
    pool = pool_of(cache)
    contents = pool.hashes(cache.state.sequences[1], 2)
    assert pool.full_hashes(1) == contents[:1]
    assert pool.first_sizes(contents) == [0, len(GROWTH)]
    cache.step(cache.run("a", 1))
    assert pool.first_sizes(contents) == [0, 0]
    # Without a block in its table, there is nothing to be found.
    cache.arrive("b", [20] * 9)
    cache.step(cache.admit("b", [3], *new))
    assert pool.first_sizes(pool.hashes(cache.state.sequences[2], 2)) == [0, None]


def test_of_blocks_with_equal_contents_the_first_has_them() -> None:
    cache = ScriptedCache()
    new = missed("not_stored", 8, 0, "a"), missed("partial_block", 1)
    for name, table in (("a", [0, 1, 2]), ("b", [3, 4, 5])):
        cache.arrive(name, A)
        cache.step(cache.admit(name, table, *new))
    pool = pool_of(cache)
    content = pool.full_hashes(1)[0]
    cache.step(cache.end("b"))
    assert pool.pools.holds(content)
    cache.step(cache.end("a"))
    assert not pool.pools.holds(content)
    for name, table in (("c", [0, 1, 2]), ("d", [3, 4, 5])):
        cache.arrive(name, A)
        cache.step(cache.admit(name, table, *new))
    cache.step(cache.end("c"))
    assert not pool.pools.holds(content)
    assert pool.has(content)


@pytest.mark.parametrize("num_prompt", range(9))
def test_the_tokens_of_a_block_are_those_of_prompt_and_output(num_prompt: int) -> None:
    cache = ScriptedCache()
    tokens = [*range(10, 23)]
    cache.arrive("a", tokens[:num_prompt])
    sequence = cache.state.sequences[1]
    sequence.output_token_ids = Ints.of(tokens[num_prompt:])
    pool = pool_of(cache)
    for position in range(5):
        assert [*pool.tokens(sequence, position)] == tokens[position * 4 :][:4]
    sequence.num_prompt_tokens += 1  # they are not all known
    assert [*pool.tokens(sequence, 0)] == []


@pytest.mark.parametrize(
    ("lora", "cache_salt", "found"), [("", "", 2), ("adapter", "", 0), ("", "salt", 0)]
)
def test_blocks_are_shared_with_the_same_adapter_and_salt(
    lora: str, cache_salt: str, found: int
) -> None:
    cache = ScriptedCache()
    cache.arrive("a", A)
    cache.step(cache.admit("a", [0, 1, 2], missed("new_tokens", 8), missed("partial_block", 1)))
    cache.arrive("b", A, lora=lora, cache_salt=cache_salt)
    pool = pool_of(cache)
    sizes = pool.first_sizes(pool.hashes(cache.state.sequences[2], 2))
    assert sizes == ([0, 0] if found else [None, None])


def test_a_pool_is_taken_over_with_the_blocks_in_use_and_those_in_the_cache() -> None:
    cache = ScriptedCache()
    for name, tokens in (("a", A), ("b", [20] * 9), ("c", [30] * 9)):
        cache.arrive(name, tokens)
    new = missed("new_tokens", 8), missed("partial_block", 1)
    cache.step(cache.admit("a", [0, 1, 2], *new), cache.admit("b", [3, 4, 5], *new))
    cache.step(cache.end("b"))
    contents = {
        name: [*pool_of(cache).hashes(cache.state.sequences[number], 2)]
        for number, name in enumerate("abc", 1)
    }
    # The last ones are impossible.
    cache.state.cached_blocks = {
        0: CachedBlock("a", 1, 0),
        1: CachedBlock("a", 1, 1),
        3: CachedBlock("b", 2, 0),
        4: CachedBlock("b", 2, 1),
        5: CachedBlock("c", 2, 1),
        6: CachedBlock("c", 3, -1),
        7: CachedBlock("c", 3, 2),
        8: CachedBlock("c", 77, 0),
    }
    late = CacheMisses()
    late.start(2, cache.state)
    pool = late._pool
    assert pool is not None
    assert pool.num_taken == 0
    assert [*map(pool.has, contents["a"] + contents["b"])] == [True] * 4
    assert [*map(pool.has, contents["c"])] == [False] * 2
    assert [*map(pool.pools.holds, contents["a"] + contents["b"])] == [True, True, False, False]
    # What is not in use can be evicted, and what is in use cannot.
    pool.pools.use(8)
    assert [*map(pool.has, contents["a"] + contents["b"])] == [True, True, False, False]
    assert pool.first_sizes(contents["b"]) == [5, 5]
    # Without what the cache has, only tables are known.
    cache.state.cached_blocks = None
    pool = PoolReplay(cache.state, engine_info(block_size=4, num_gpu_blocks=8))
    assert [*map(pool.has, contents["a"] + contents["b"])] == [True, True, False, False]


@pytest.mark.parametrize("step", [-1, 0])
def test_only_a_run_from_its_first_step_on_is_known_in_full(step: int) -> None:
    state, misses = EngineState(), CacheMisses()
    state.step = step
    misses.start(0, state)
    assert misses.starts_late == (step == 0)


@pytest.mark.parametrize(
    ("num_prompt", "num_output", "num_tokens", "num_blocks"),
    [
        (9, 0, 9, 3),
        (9, 0, 8, 2),
        (9, 0, 2**39, 3),
        (5, 4, 9, 3),
        (5, 4, 6, 2),
        (0, 0, 9, 0),
        (9, 0, 0, 0),
        (9, 0, -3, 0),
    ],
)
def test_a_sequence_without_a_table_takes_blocks_for_its_known_tokens(
    num_prompt: int, num_output: int, num_tokens: int, num_blocks: int
) -> None:
    cache = ScriptedCache()
    cache.arrive("a", [7] * num_prompt)
    sequence = cache.state.sequences[1]
    sequence.output_token_ids = Ints.of([8] * num_output)
    pool = pool_of(cache)
    pool.admit(sequence, num_tokens, 0, [])
    assert pool.num_taken == num_blocks
