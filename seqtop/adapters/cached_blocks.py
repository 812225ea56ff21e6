"""Derives the changes of a prefix cache for viewers from those that an adapter observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seqtop.adapters.observations import (
    AnyCacheEvent,
    BlocksCached,
    BlocksUncached,
    CacheReset,
)
from seqtop.adapters.request import PublishedRequest
from seqtop.wire.messages import CachedBlocks

_UNKNOWN = -1
"""The id of the sequence that wrote a block before the engine was observed."""


class CachedContent:
    """The blocks in the prefix cache of an engine that reports its content."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()

    def changes(
        self, events: Iterable[AnyCacheEvent], requests: Mapping[str, PublishedRequest]
    ) -> tuple[list[CachedBlocks], list[int]]:
        """Returns the blocks that a step has added in the end, and those that it has removed.

        A block may be removed, used again and added in one step. It is then in both.

        Args:
            events: The events of the step, in order.
            requests: The unfinished requests by internal id.
        """
        added: dict[int, CachedBlocks] = {}
        removed: dict[int, None] = {}
        for event in events:
            match event:
                case BlocksCached():
                    run = _run(event, requests)
                    for block in event.blocks:
                        added.pop(block, None)  # so that they are in order
                        added[block] = run
                case BlocksUncached():
                    for block in event.blocks:
                        if added.pop(block, None) is None:
                            removed[block] = None
                case CacheReset():
                    added.clear()
                    removed |= dict.fromkeys(self._blocks)
        self._blocks.difference_update(removed)
        self._blocks.update(added)
        return _runs(added), list(removed)

    def replace(
        self, runs: Iterable[BlocksCached], requests: Mapping[str, PublishedRequest]
    ) -> list[CachedBlocks]:
        """Replaces the content; returns it for viewers."""
        content = [_run(run, requests) for run in runs]
        self._blocks = {block for run in content for block in run.blocks}
        return content


def _run(event: BlocksCached, requests: Mapping[str, PublishedRequest]) -> CachedBlocks:
    request = requests.get(event.request_id)
    return CachedBlocks(
        request_id=request.name if request is not None else "",
        seq_id=request.seq_id if request is not None else _UNKNOWN,
        position=event.position,
        blocks=event.blocks,
    )


def _runs(added: Mapping[int, CachedBlocks]) -> list[CachedBlocks]:
    """Returns the runs, without the blocks that have been removed again."""
    runs = list({id(run): run for run in added.values()}.values())
    if sum(len(run.blocks) for run in runs) == len(added):
        return runs
    return [
        CachedBlocks(
            request_id=run.request_id,
            seq_id=run.seq_id,
            position=run.position + offset,
            blocks=[block],
        )
        for run in runs
        for offset, block in enumerate(run.blocks)
        if added.get(block) is run
    ]
