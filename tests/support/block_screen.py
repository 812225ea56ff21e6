"""Access to the block map in tests of the blocks screen."""

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.blocks.block_map import BlockMap


def pool(app: SeqtopApp) -> BlockMap:
    return app.screen.query_one(BlockMap)


def sequence(app: SeqtopApp, request_id: str, number: int = 0) -> int:
    return app.ui.state.requests[request_id].seq_ids[number]


def table(app: SeqtopApp, request_id: str) -> list[int]:
    return app.ui.state.sequences[sequence(app, request_id)].block_table
