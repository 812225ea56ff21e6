"""The groups that a worker has been sent: a copy of each, updated from deltas."""

from __future__ import annotations

import msgspec

from seqtop.sequence import SequenceGroupMetadata, SequenceGroupMetadataLike


def update_group(
    seq_groups: dict[str, SequenceGroupMetadata], sent: SequenceGroupMetadataLike
) -> SequenceGroupMetadata:
    """Updates the copy of a group from a full description or a delta, and returns it.

    Raises:
        SequenceError: A delta does not fit the group that was sent before.
        KeyError: A delta came for a group that was not sent in full.
    """
    if isinstance(sent, SequenceGroupMetadata):
        # Deltas change the copy; the request must stay unchanged.
        seq_data = {seq_id: data.snapshot() for seq_id, data in sent.seq_data.items()}
        group = msgspec.structs.replace(sent, seq_data=seq_data)
        seq_groups[sent.request_id] = group
    else:
        group = seq_groups[sent.request_id]
        group.apply_delta(sent)
        group.state = sent.state  # `apply_delta` leaves the state unchanged, as in vLLM
    return group
