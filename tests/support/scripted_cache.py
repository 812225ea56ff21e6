"""The misses of an engine whose admissions and block tables are written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqtop.misses.cache_misses import CacheMisses
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    Chunk,
    Event,
    MissCause,
    Preemption,
    PrefixMiss,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
)
from tests.support import events


class ScriptedCache:
    """An engine with blocks of 4 tokens, and the misses of its run.

    Args:
        options: Those of `CacheMisses`.
        info: Fields of its `EngineInfo`.
    """

    def __init__(self, options: dict[str, int] | None = None, **info: Any) -> None:
        self.state = EngineState()
        self.misses = CacheMisses(**options or {})
        self.position = 0
        self.number = 0
        """The number of the next step, which ends half a second after it began."""
        self.seq_ids: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        values: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 8}
        self.state.apply(events.engine_info(**(values | info)))
        self.misses.start(0, self.state)

    def publish(self, event: Event) -> None:
        """Applies an event, and reads the misses that it tells."""
        self.position += 1
        self.misses.before(event)
        self.misses.apply(self.position, event, [*self.state.apply(event)])

    def arrive(self, name: str, tokens: Sequence[int], **fields: Any) -> None:
        """Announces a request."""
        self.seq_ids[name] = len(self.seq_ids) + 1
        self.publish(
            RequestArrived(
                request_id=name,
                arrival_time=0.0,
                seq_ids=[self.seq_ids[name]],
                num_prompt_tokens=len(tokens),
                prompt_token_ids=Ints.of(tokens),
                **fields,
            )
        )

    def admit(
        self,
        name: str,
        table: list[int],
        *misses: PrefixMiss,
        cached: int = 0,
        num_tokens: int | None = None,
        **fields: Any,
    ) -> SequenceUpdate:
        """Returns the update of a request that is admitted.

        Args:
            name: The request.
            table: Its block table.
            misses: The tokens that were not found.
            cached: The tokens that were found.
            num_tokens: The tokens that it computes; by default all that were not found.
            fields: Other fields of the update.
        """
        missed = sum(miss.num_tokens for miss in misses)
        self.computed[name] = cached
        return self.run(
            name,
            missed if num_tokens is None else num_tokens,
            block_table=table,
            num_cached_tokens=cached,
            prefix_misses=[*misses],
            **fields,
        )

    def run(self, name: str, num_tokens: int = 1, **fields: Any) -> SequenceUpdate:
        """Returns the update of a request that computes tokens."""
        chunk = Chunk(num_tokens, self.computed[name])
        self.computed[name] += num_tokens
        return SequenceUpdate(self.seq_ids[name], request_id=name, chunk=chunk, **fields)

    def end(self, name: str) -> SequenceUpdate:
        """Returns the update of a request that ends without another token."""
        return SequenceUpdate(
            self.seq_ids[name],
            request_id=name,
            status=SequenceStatus.FINISHED_STOPPED,
            block_table=[],
        )

    def preempt(self, name: str) -> tuple[Preemption, SequenceUpdate]:
        """Returns what a step says of a request that loses its blocks."""
        return events.preemption(name), SequenceUpdate(
            self.seq_ids[name],
            request_id=name,
            status=SequenceStatus.WAITING,
            num_computed_tokens=0,
            block_table=[],
        )

    def step(self, *updates: SequenceUpdate, **fields: Any) -> None:
        """Publishes a step."""
        step = events.step(self.number, execute=None, sequences=[*updates], **fields)
        self.number += 1
        self.publish(step)

    def abort(self, name: str) -> None:
        """Ends a request between two steps."""
        self.publish(
            RequestFinished(
                request_id=name,
                time=200.0,
                status=SequenceStatus.FINISHED_ABORTED,
                metrics=RequestMetrics(0.0, 0.0, None, None, None, 200.0),
            )
        )


def missed(
    cause: MissCause, num_tokens: int, step: int | None = None, request_id: str | None = None
) -> PrefixMiss:
    """Returns tokens that were not found."""
    return PrefixMiss(cause, num_tokens, step, request_id)
