"""The changes of a prefix cache in a step, from what happened in it."""

import pytest

from seqtop.adapters.cached_blocks import CachedContent
from seqtop.adapters.observations import AnyCacheEvent, BlocksCached, BlocksUncached, CacheReset
from seqtop.adapters.request import PublishedRequest
from seqtop.sequence import RequestMetrics
from seqtop.wire.messages import CachedBlocks

METRICS = RequestMetrics(0.0, 0.0, None, None, None)
REQUESTS = {"a-1": PublishedRequest(seq_id=5, name="a", num_prompt_tokens=9, metrics=METRICS)}


def add(position: int, *blocks: int) -> BlocksCached:
    return BlocksCached("a-1", position, [*blocks])


def cached(position: int, *blocks: int) -> CachedBlocks:
    return CachedBlocks(request_id="a", seq_id=5, position=position, blocks=[*blocks])


@pytest.mark.parametrize(
    ("events", "added", "removed"),
    [
        ([], [], []),
        ([add(2, 7, 8)], [cached(2, 7, 8)], []),
        ([BlocksUncached([1]), add(0, 1)], [cached(0, 1)], [1]),
        ([add(4, 7, 8, 9), BlocksUncached([8])], [cached(4, 7), cached(6, 9)], []),
        ([BlocksUncached([1]), add(0, 1), BlocksUncached([1])], [], [1]),
        ([add(0, 7), BlocksUncached([7]), add(3, 7)], [cached(3, 7)], []),
        ([add(4, 7), CacheReset(), add(0, 2)], [cached(0, 2)], [1, 2]),
    ],
    ids=[
        "nothing",
        "added",
        "used again",
        "partly removed",
        "removed twice",
        "moved",
        "emptied",
    ],
)
def test_a_step_says_what_has_changed_in_the_end(
    events: list[AnyCacheEvent], added: list[CachedBlocks], removed: list[int]
) -> None:
    content = CachedContent()
    content.changes([add(0, 1, 2)], REQUESTS)
    assert content.changes(events, REQUESTS) == (added, removed)


def test_the_writer_of_a_block_may_be_unknown() -> None:
    run = BlocksCached("", 3, [4])
    (known,) = CachedContent().replace([run], REQUESTS)
    assert known == CachedBlocks(request_id="", seq_id=-1, position=3, blocks=[4])
