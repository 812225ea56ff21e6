"""A sequence's part in a step, as the worker sees it."""

from __future__ import annotations

from dataclasses import dataclass

from engine_stub.spec_decode.speculation import Draft
from seqtop.sequence import SequenceData, SequenceGroupMetadata


@dataclass(slots=True)
class BatchRow:
    """A sequence's part in a step.

    Attributes:
        group_index: The position of its group in the request.
        block_table: Its blocks up to the last token of this step.
        start: Its first token to compute; the KV entries of those before are in the pool.
        end: The token after the last one to compute, the draft included.
        draft: The tokens to verify after the sequence's own; may be empty.
    """

    group_index: int
    group: SequenceGroupMetadata
    seq_id: int
    data: SequenceData
    block_table: list[int]
    start: int
    end: int
    draft: Draft

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        return self.data.get_token_ids()[self.start : self.end] + self.draft.token_ids
