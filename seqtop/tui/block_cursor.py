"""The cursor of the block map, and the blocks of the state on display by number."""

from seqtop.state import EngineState
from seqtop.state.block_index import BlockIndex


class BlockCursor:
    """The block under the cursor, and an index of who holds which block.

    The index is made when it is first used, and follows the state on display from then on.
    """

    def __init__(self) -> None:
        self.block: int | None = None
        """The block under the cursor of the block map, numbered as in `BlockMap`.

        While it is `None`, the cursor stays on the first block of the selected sequence."""
        self.single_blocks = False
        """True if the block map has a cell for every block even if the pool does not fit then."""
        self._index = BlockIndex()
        self._is_indexed = False
        self._changed: set[int] | None = None
        """Blocks whose owners changed since the last `take_changed`; `None` means all."""

    def index(self, state: EngineState) -> BlockIndex:
        """Updates and returns the index of the blocks of the state on display."""
        if not self._is_indexed or not self._index.fits(state):
            self._index.rebuild(state)
            self._is_indexed, self._changed = True, None
        return self._index

    def take_changed(self) -> set[int] | None:
        """Returns the blocks whose owners changed since the last call; `None` means all."""
        changed, self._changed = self._changed, set()
        return changed

    def update(self, state: EngineState, touched: set[int] | None) -> None:
        """Follows a change of the state on display; `None` means that all of it may differ."""
        if touched is None:
            self._is_indexed = False
        elif self._is_indexed:
            # Frame by frame: to catch up with many frames at once would delay one of them.
            changed = self._index.update(state, touched)
            if self._changed is not None:
                self._changed |= changed
