"""The blocks of one size that viewers have of a pool with several kinds of attention."""

from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.transformers.blocks import Blocks


def cache(**blocks_per_sector: int) -> Any:
    """A cache of four sectors: two are reserved, one is free, and each kind has a free block."""
    allocators = {
        kind: SimpleNamespace(
            index=index,
            blocks_per_sector=number,
            tokens_per_page=16,
            block_table={"a": [number * 2, number * 2 + 1][:number]},
            ledger=SimpleNamespace(cached_blocks={7: None} if kind == "full_attention" else {}),
            **({"sliding_window": 24} if kind == "sliding_attention" else {}),
        )
        for index, (kind, number) in enumerate(blocks_per_sector.items())
    }
    pool = SimpleNamespace(
        num_sectors=2, num_reserved_sectors=2, num_free_sectors=1, count_free_blocks=lambda _: 1
    )
    return SimpleNamespace(pool=pool, cache_allocators=allocators)


@pytest.mark.parametrize(
    ("kinds", "tables", "names", "sizes"),
    [
        # One kind: transformers' own numbers.
        ({"full_attention": 1}, ([2],), [], (4, 2, 2, 1)),
        ({"sliding_attention": 1}, ([2],), [], (4, 2, 2, 0)),
        # A sliding block is two full ones.
        (
            {"sliding_attention": 1, "full_attention": 2},
            ([4, 5], [4, 5]),
            ["full_attention", "sliding_attention"],
            (8, 4, 5, 1),
        ),
        # Sectors of 2 full blocks or 3 sliding ones: units of a sixth of a sector.
        (
            {"full_attention": 2, "sliding_attention": 3},
            ([12, 15], [12, 13, 14, 15], [13, 14, 16, 17]),
            ["full_attention", "sliding_attention", "full_attention, rest"],
            (24, 12, 11, 3),
        ),
    ],
)
def test_tables_and_figures_are_in_blocks_of_one_size(
    kinds: dict[str, int],
    tables: tuple[list[int], ...],
    names: list[str],
    sizes: tuple[int, int, int, int],
) -> None:
    blocks = Blocks(cache(**kinds))
    assert blocks.of("a") == tables
    assert blocks.of("unknown") == ()
    assert blocks.kinds == names
    figures = (blocks.num_blocks, blocks.num_reserved, blocks.num_free(), blocks.num_cached)
    assert figures == sizes
    rings = [spec["kind"] for spec in blocks.specs if spec.get("has_positions") is False]
    assert rings == [kind for kind in (names or kinds) if kind != "full_attention"]
