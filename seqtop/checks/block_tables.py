"""The block tables that the rules on blocks share, and what the last event changed of them."""

from collections.abc import Iterable

from seqtop.state import EngineState
from seqtop.state.block_index import BlockIndex
from seqtop.state.model import SequenceState
from seqtop.wire.messages import Event, Step


class BlockTables:
    """An index over the block tables of a state, which the `Checker` updates after each event.

    Args:
        state: The state.
    """

    def __init__(self, state: EngineState) -> None:
        self.index = BlockIndex()
        self.index.rebuild(state)
        self.new_positions: dict[int, range] = {}
        """The logical positions that are new to the table of each sequence that changed."""
        self.changed: set[int] = set()
        """The blocks that sequences got or released."""
        self.released: dict[str, list[int]] = {}
        """The blocks that sequences released, by the request that held them, on the host with
        numbers after those of the device."""
        self._state = state
        self._request_ids = {
            sequence.seq_id: sequence.request_id for sequence in state.sequences.values()
        }

    def update(self, touched: Iterable[int]) -> None:
        """Indexes the tables of the sequences `touched`."""
        self.new_positions, self.changed, self.released = {}, set(), {}
        if not self.index.fits(self._state):
            self.index.rebuild(self._state)
        for seq_id in touched:
            sequence = self._state.sequences.get(seq_id)
            change = self.index.set_tables(seq_id, sequence)
            if change.new_positions or seq_id not in self.new_positions:
                self.new_positions[seq_id] = change.new_positions
            if sequence is not None:
                request_id = self._request_ids[seq_id] = sequence.request_id
            else:
                request_id = self._request_ids.pop(seq_id, "")
            if not change.blocks:
                continue
            self.changed |= change.blocks
            released = [block for block in change.blocks if seq_id not in self.index.owners(block)]
            if released:
                self.released.setdefault(request_id, []).extend(sorted(released))


def cache_changes(event: Event) -> set[int]:
    """Returns the blocks that a step adds to the prefix cache or removes from it."""
    if not isinstance(event, Step) or event.newly_cached_blocks is None:
        return set()
    return {*event.uncached_blocks, *(b for run in event.newly_cached_blocks for b in run.blocks)}


def tokens_of(
    state: EngineState, sequence: SequenceState, start: int, end: int
) -> list[int] | None:
    """Returns tokens of prompt and output, from `start` to `end`; `None` if they are redacted."""
    prompt, output = state.requests[sequence.request_id].prompt_token_ids, sequence.output_token_ids
    if (num := len(prompt)) != sequence.num_prompt_tokens:
        return None
    return [*prompt[start:end], *output[max(start - num, 0) : max(end - num, 0)]]


def num_equal_tokens(
    state: EngineState, one: SequenceState, other: SequenceState, most: int
) -> int | None:
    """Returns the number of leading tokens, up to `most`, that two sequences have in common.

    It is `None` where the stream is redacted.
    """
    tokens, others = tokens_of(state, one, 0, most), tokens_of(state, other, 0, most)
    if tokens is None or others is None:
        return None
    if tokens == others:
        return most
    low, high = 0, min(len(tokens), len(others))
    while low < high:  # by halves, since comparing slices takes no loop
        middle = (low + high + 1) // 2
        if tokens[low:middle] == others[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def extra_keys_of(state: EngineState, sequence: SequenceState) -> tuple[str, str]:
    """Returns what blocks of a sequence depend on beside its tokens: LoRA adapter and salt."""
    request = state.requests[sequence.request_id]
    return request.lora, request.cache_salt
