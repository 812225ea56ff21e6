"""The nearest cached prefix of an admission, in runs that are written by hand."""

import pytest

from seqtop.misses import nearest_prefix
from seqtop.misses.nearest_prefix import PrefixDifference
from tests.support.scripted_cache import ScriptedCache, missed


def admit(cache: ScriptedCache, name: str, tokens: list[int], prompt: str | None = None) -> None:
    """Admits a request that finds what the repeated pool has, and ends it."""
    cache.arrive(name, tokens, prompt=prompt)
    pool = cache.misses._pool
    assert pool is not None
    sequence = cache.state.sequences[cache.seq_ids[name]]
    num_blocks = (len(tokens) - 1) // 4
    found = 4 * pool.first_sizes(pool.hashes(sequence, num_blocks)).count(0)
    misses = [missed("new_tokens", 4 * num_blocks - found)] if found < 4 * num_blocks else []
    rest = missed("partial_block", len(tokens) - 4 * num_blocks)
    cache.step(cache.admit(name, [*range(num_blocks + 1)], *misses, rest, cached=found))
    cache.step(cache.end(name))


def difference(
    cache: ScriptedCache, tokens: list[int], prompt: str | None = None
) -> PrefixDifference | None:
    """Returns the difference that an admission has."""
    admit(cache, "own", tokens, prompt)
    return cache.misses.lookups[-1].difference


@pytest.mark.parametrize(
    ("cached", "own", "expected"),
    [
        # In the second block, which begins with the fifth token.
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9]], [1, 2, 3, 4, 5, 6, 70, 8, 9], ("r0", 6, 70, 7)),
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9]], [1, 2, 3, 4, 50, 6, 7, 8, 9], ("r0", 4, 50, 5)),
        # In the first one, unless nothing is equal.
        ([[1, 2, 3, 4, 5]], [1, 2, 3, 40, 5], ("r0", 3, 40, 4)),
        ([[1, 2, 3, 4, 5]], [1, 20, 3, 4, 5], ("r0", 1, 20, 2)),
        ([[1, 2, 3, 4, 5]], [10, 2, 3, 4, 5], None),
        # There is no difference: all is found, or the end is no block.
        ([[1, 2, 3, 4, 5]], [1, 2, 3, 4, 50], None),
        ([[1, 2, 3, 4, 5]], [1, 2, 3, 4], None),
        ([[1, 2, 3, 4, 5, 6, 7, 8, 9]], [1, 2, 3, 4, 5, 60], None),
        # The one with the most equal tokens; of several, the one that was stored first.
        ([[1, 2, 0, 0, 0], [1, 2, 3, 0, 0], [1, 0, 0, 0, 0]], [1, 2, 3, 4, 5], ("r1", 3, 4, 0)),
        ([[1, 2, 6, 0, 0], [1, 2, 7, 0, 0]], [1, 2, 3, 4, 5], ("r0", 2, 3, 6)),
        # Nobody continues the part that is found.
        ([[1, 2, 3, 4, 5]], [1, 2, 3, 4, 5, 6, 7, 8, 9], None),
        # A block further on.
        ([[*range(13)]], [*range(11), 90, 91], ("r0", 11, 90, 11)),
    ],
)
def test_the_first_token_that_differs_is_found(
    cached: list[list[int]], own: list[int], expected: tuple[str, int, int, int] | None
) -> None:
    cache = ScriptedCache(num_gpu_blocks=30)
    for number, tokens in enumerate(cached):
        admit(cache, f"r{number}", tokens)
    found = difference(cache, own)
    assert (found and found[:4]) == expected
    assert found is None or found[4:] == (None, None, None)


COMMON = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("prompt", "other", "expected"),
    [
        (COMMON + "123", COMMON + "456", (COMMON[-24:], "123", "456")),
        (COMMON[:24] + "1", COMMON[:24] + "2", (COMMON[:24], "1", "2")),
        ("a" + COMMON, "b" + COMMON, ("", "a" + COMMON[:23], "b" + COMMON[:23])),
        ("ab1", "ab2", ("ab", "1", "2")),
        ("ab", "abc", ("ab", "", "c")),
        ("abc", "ab", ("ab", "c", "")),
        (None, "ab", (None, None, None)),
        ("ab", None, (None, None, None)),
    ],
)
def test_the_texts_begin_where_they_differ(
    prompt: str | None, other: str | None, expected: tuple[str | None, str | None, str | None]
) -> None:
    cache = ScriptedCache()
    admit(cache, "r0", [1, 2, 3, 4, 5], other)
    found = difference(cache, [1, 2, 3, 40, 5], prompt)
    assert found == ("r0", 3, 40, 4, *expected)


def test_a_prefix_that_is_not_cached_any_more_is_not_near() -> None:
    cache = ScriptedCache(num_gpu_blocks=4)
    admit(cache, "r0", [1, 2, 3, 4, 5])
    admit(cache, "r1", [9] * 13)  # it takes all blocks
    assert difference(cache, [1, 2, 3, 40, 5]) is None


@pytest.mark.parametrize("change", ["left", "other request", "unknown tokens"])
def test_a_prefix_whose_tokens_are_not_known_is_not_near(change: str) -> None:
    """Since its request has left the state, or its sequence has been another request's since."""
    cache = ScriptedCache()
    admit(cache, "r0", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    match change:
        case "left":
            del cache.state.sequences[1]
        case "other request":
            cache.state.sequences[1].request_id = "other"
        case _:
            cache.state.sequences[1].num_prompt_tokens += 1
    assert difference(cache, [1, 2, 3, 4, 50, 6, 7, 8, 9]) is None


@pytest.mark.parametrize(
    ("stored", "nearest"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 0),
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], 1),
        ([0, 1, 2, 3, 4, 5, 6, 7, 0, 8], 2),  # what is stored again is new
    ],
)
def test_the_newest_eight_continuations_of_a_prefix_are_kept(
    stored: list[int], nearest: int
) -> None:
    cache = ScriptedCache(num_gpu_blocks=30)
    for index, number in enumerate(stored):
        admit(cache, f"r{index}", [1, 2, 3, 10 + number, 0])
    assert difference(cache, [1, 2, 3, 4, 5]) == (f"r{nearest}", 3, 4, 10 + nearest, *[None] * 3)


def test_of_more_prefixes_than_are_kept_the_oldest_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nearest_prefix, "MAX_PREFIXES", 3)
    for num_others, is_kept in [(2, True), (3, False)]:
        cache = ScriptedCache(num_gpu_blocks=40)
        admit(cache, "r0", [1, 2, 3, 4, 5, 6, 7, 8, 9])  # continues the start, and its first block
        admit(cache, "r1", [*range(20, 20 + 4 * num_others + 1)])
        found = difference(cache, [1, 2, 3, 4, 5, 6, 70, 8, 9])
        assert (found is not None) == is_kept
