"""Block tables on the device are those of the sequences, and only what is new is copied."""

import random

import pytest
import torch
from torch import Tensor

from engine_stub import platforms
from engine_stub.worker import block_tables
from engine_stub.worker.block_tables import DeviceBlockTables
from tests.support.running import MakeEngine, greedy, run

CPU = torch.device("cpu")
WIDTH = 8


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of blocks of each copy."""
    sizes: list[int] = []
    to_device = platforms.to_device

    def counted(values: list[int], device: torch.device) -> Tensor:
        sizes.append(len(values) // 2)
        return to_device(values, device)

    monkeypatch.setattr(block_tables, "to_device", counted)
    return sizes


def step(tables: DeviceBlockTables, given: dict[int, list[int]]) -> None:
    """Places tables, and compares those on the device with them."""
    starts = {seq_id: tables.place(seq_id, table) for seq_id, table in given.items()}
    tables.write()
    for seq_id, table in given.items():
        start = starts[seq_id]
        assert tables.blocks[start : start + len(table)].tolist() == table


def test_only_what_is_new_is_copied(copied: list[int]) -> None:
    tables = DeviceBlockTables(3, WIDTH, CPU)
    first = {0: [5, 6], 1: [7]}
    step(tables, first)
    step(tables, first)
    step(tables, {0: [5, 6], 1: [7]})  # the same, from a wire
    assert copied == [3]
    step(tables, {0: [5, 6, 8], 1: [7]})
    step(tables, {1: [7]})
    step(tables, {0: [5, 6, 8], 1: [7, 9, 2]})  # while the one in row 0 waited
    assert copied == [3, 1, 2]
    step(tables, {0: [5, 6, 1], 1: [7]})  # a copy of a shared block, and another table
    assert copied == [3, 1, 2, 4]


def test_a_row_is_taken_from_a_sequence_that_is_not_in_the_step(copied: list[int]) -> None:
    tables = DeviceBlockTables(2, WIDTH, CPU)
    step(tables, {0: [1, 2], 1: [3, 4]})
    step(tables, {1: [3, 4], 2: [5]})
    step(tables, {1: [3, 4], 0: [1, 2]})
    assert copied == [4, 1, 2]


def test_a_run_copies_each_block_once(make_engine: MakeEngine, copied: list[int]) -> None:
    lengths = 6, 17, 24
    run(make_engine(), [[3 + length] * length for length in lengths], greedy(20))
    # The last token has no slot.
    assert sum(copied) == sum(-(-(length + 19) // 4) for length in lengths)


@pytest.mark.parametrize("seed", range(20))
def test_random_steps(seed: int) -> None:
    """Some tables grow, some are replaced or cut, some wait, and some are new."""
    rng = random.Random(seed)
    tables = DeviceBlockTables(4, WIDTH, CPU)
    given: dict[int, list[int]] = {}
    for _ in range(60):
        for seq_id in rng.sample(range(9), rng.randint(1, 4)):
            table = given.get(seq_id, [])
            kept = table[: rng.choice([0, len(table), len(table), len(table) - 1])]
            most = WIDTH - len(kept)
            given[seq_id] = kept + [rng.randrange(100) for _ in range(rng.randint(0, most))]
        step(tables, {seq_id: given[seq_id] for seq_id in rng.sample([*given], min(4, len(given)))})
