"""The block tables of the sequences that run, which stay on the device from step to step.

As in vLLM's persistent batch, each sequence has a row of one tensor, and a step copies only what is
new: the blocks that a table was extended by, or a whole table that is new, was swapped in, or has
another block for one that was shared. Attention reads the tables where they are.
"""

from __future__ import annotations

import torch

from engine_stub.platforms import to_device


class DeviceBlockTables:
    """Tables in rows of one tensor.

    Attributes:
        blocks: ``[num_rows * width]`` int64, one row after another; beyond the end of a row's table
            it has blocks of earlier ones.

    Args:
        num_rows: The most sequences of a step.
        width: The most blocks of a sequence.
    """

    def __init__(self, num_rows: int, width: int, device: torch.device) -> None:
        self.blocks = torch.zeros(num_rows * width, dtype=torch.int64, device=device)
        self._num_rows = num_rows
        self._width = width
        # The least recently used ones first. Those of a step are among the last `num_rows`.
        self._rows: dict[int, int] = {}
        self._written: list[list[int]] = []
        self._new_indices: list[int] = []
        self._new_blocks: list[int] = []

    def place(self, seq_id: int, table: list[int]) -> int:
        """Gives a sequence a row, and notes what is new in its table until `write`.

        Args:
            seq_id: The sequence; at most `num_rows` of them in a step.
            table: All its blocks. The list must not be changed later.

        Returns:
            The index in `blocks` at which its table begins.
        """
        row = self._rows.pop(seq_id, None)
        if row is None:
            row = self._free_row()
        self._rows[seq_id] = row
        start = row * self._width
        written = self._written[row]
        # While a table does not change, it is the same list, except behind a wire.
        if table is not written:
            assert len(table) <= self._width
            num_same = len(written) if table[: len(written)] == written else 0
            self._new_indices += range(start + num_same, start + len(table))
            self._new_blocks += table[num_same:]
            self._written[row] = table
        return start

    def write(self) -> None:
        """Copies what is new to the device; the host does not wait."""
        if self._new_blocks:
            new = to_device(self._new_indices + self._new_blocks, self.blocks.device)
            indices, blocks = new.chunk(2)
            self.blocks.index_copy_(0, indices, blocks)
            self._new_indices, self._new_blocks = [], []

    def _free_row(self) -> int:
        """Returns a row that no sequence of the step has."""
        if len(self._written) < self._num_rows:
            self._written.append([])
            return len(self._written) - 1
        return self._rows.pop(next(iter(self._rows)))
