"""What a step record says of the blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStats:
    """Blocks by state, and what the prefix cache has done since the engine started.

    Attributes:
        total: Blocks in the device's pool: `used` + `cached` + `free`.
        prefix_queries: Tokens of all sequences placed, each time they were.
        prefix_hits: Those of them found in the cache.
        total_cpu: Blocks in host memory.
        free_cpu: Those of them that hold nothing.
    """

    total: int
    used: int
    cached: int
    free: int
    prefix_queries: int
    prefix_hits: int
    total_cpu: int
    free_cpu: int


@dataclass(frozen=True, slots=True)
class CacheChanges:
    """What has become of the prefix cache since it was last asked.

    Attributes:
        forgotten: Blocks that it no longer knows; they come before those of `known`, which may
            name one of them again.
        known: ``(block, sequence id, logical position)`` of each block that it has come to know.
    """

    forgotten: list[int]
    known: list[tuple[int, int, int]]
