"""The resources of an engine that are used up, in words.

Each resource has its own figures and units: a request that waits for the encoder cache is not
helped by free blocks.
"""

from __future__ import annotations

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData
from seqtop.text import format as fmt

_MAX_NAMED = 3


def full_resources(state: EngineData) -> list[str]:
    """Returns the resources other than blocks that are used up after the last step, in words."""
    stats, info = state.stats, state.info
    if stats is None or info is None:
        return []
    full = []
    if is_encoder_cache_full(state):
        full.append(
            f"the encoder cache is full ({stats.num_used_encoder_slots:,} of"
            f" {info.encoder_cache_size:,} tokens{_encoder_inputs(state)})"
        )
    used, most = stats.num_used_loras, info.max_loras
    if used is not None and most is not None and used >= most > 0:
        full.append(f"max_loras ({most:,}) adapters are in use")
    if stats.num_running >= info.max_num_seqs > 0:
        full.append(f"max_num_seqs ({info.max_num_seqs:,}) sequences run")
    return full


def is_encoder_cache_full(state: EngineData) -> bool:
    """Returns whether requests need all of the encoder cache."""
    stats, info = state.stats, state.info
    if stats is None or info is None or stats.num_used_encoder_slots is None:
        return False
    return stats.num_used_encoder_slots >= (info.encoder_cache_size or 0) > 0


def _encoder_inputs(state: EngineData) -> str:
    """Says which requests have inputs of an encoder; empty if that is unknown."""
    waiting, running = list[str](), list[str]()
    for request in state.requests.values():
        if request.finish_reason is None and request.num_encoder_inputs:
            runs = any(
                state.sequences[seq_id].status is SequenceStatus.RUNNING
                for seq_id in request.seq_ids
            )
            (running if runs else waiting).append(request.request_id)
    if not waiting + running:
        return ""
    return (
        f"; {fmt.plural(len(waiting), 'waiting request')}{_names(waiting)} and {len(running):,}"
        f" that run{_names(running)} have inputs"
    )


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return f" ({', '.join(names[:_MAX_NAMED])}{more})" if names else ""
