"""Hidden states of the target model, from which a proposer drafts."""

from __future__ import annotations

import msgspec

from seqtop.sequence.errors import SequenceError
from seqtop.sequence.metadata import SequenceGroupMetadata, get_all_seq_ids
from seqtop.sequence.tensors import Tensor, concatenate


class HiddenStates(msgspec.Struct, array_like=True, omit_defaults=True):
    """Hidden states of the sequences in progress, one row per sequence.

    Attributes:
        hidden_states: ``[num_tokens, hidden_size]`` after prefill; after a decode step
            ``[num_seqs, hidden_size]``, for the last accepted token of each sequence.
        seq_group_metadata_list: The groups of the rows; for decode steps only.
        second_last_token_hidden_states: ``[num_seqs, hidden_size]`` for the proposer's last token
            but one; used only if a sequence got a bonus token.

    Raises:
        SequenceError: The numbers of groups and rows differ.
    """

    # None only if a sender could not encode the tensor.
    hidden_states: Tensor | None
    seq_group_metadata_list: list[SequenceGroupMetadata] | None = None
    second_last_token_hidden_states: Tensor | None = None
    _seq_ids: list[int] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.seq_group_metadata_list is None:
            return
        if self.hidden_states is not None:
            _require_rows(self.hidden_states, self.seq_group_metadata_list)
        self._seq_ids = get_all_seq_ids(self.seq_group_metadata_list)

    @property
    def seq_ids(self) -> list[int]:
        """The sequence of each row."""
        return self._seq_ids

    def update(
        self,
        hidden_states: Tensor,
        seq_group_metadata_list: list[SequenceGroupMetadata],
        second_last_token_hidden_states: Tensor | None = None,
    ) -> None:
        """Appends the rows of a decode step.

        Rows of the last token but one are appended only if there are such rows already; if none
        are given, zeros are appended.

        Raises:
            SequenceError: The numbers of groups and rows differ. Nothing has changed.
        """
        _require_rows(hidden_states, seq_group_metadata_list)
        joined = concatenate(self._rows(), hidden_states)
        if self.second_last_token_hidden_states is not None:
            if second_last_token_hidden_states is None:
                second_last_token_hidden_states = hidden_states.new_zeros(hidden_states.shape)
            self.second_last_token_hidden_states = concatenate(
                self.second_last_token_hidden_states, second_last_token_hidden_states
            )
        self.hidden_states = joined
        self._seq_ids.extend(get_all_seq_ids(seq_group_metadata_list))

    def prune(self, seq_group_metadata_list: list[SequenceGroupMetadata]) -> None:
        """Keeps only the rows of these groups, in their order; ignores groups without rows."""
        row_of = self._row_of()
        seq_ids = [i for i in get_all_seq_ids(seq_group_metadata_list) if i in row_of]
        if seq_ids == self._seq_ids:
            return
        rows = [row_of[seq_id] for seq_id in seq_ids]
        self.hidden_states = self._rows()[rows]
        if self.second_last_token_hidden_states is not None:
            self.second_last_token_hidden_states = self.second_last_token_hidden_states[rows]
        self._seq_ids = seq_ids

    def expand_with_bonus_tokens(self, seq_with_bonus_token_in_last_step: set[int]) -> None:
        """Inserts the row of the last token but one before each row with a bonus token.

        Does nothing if there are no such sequences or no such rows.
        """
        if self.second_last_token_hidden_states is None or not seq_with_bonus_token_in_last_step:
            return
        row_of = self._row_of()
        order: list[int] = []
        for seq_id in self._seq_ids:
            if seq_id in seq_with_bonus_token_in_last_step:
                order.append(row_of[seq_id] + len(self._seq_ids))
            order.append(row_of[seq_id])
        both = concatenate(self._rows(), self.second_last_token_hidden_states)
        self.hidden_states = both[order]

    def _row_of(self) -> dict[int, int]:
        """Returns the index of the first row of each sequence."""
        return {seq_id: row for row, seq_id in reversed([*enumerate(self._seq_ids)])}

    def _rows(self) -> Tensor:
        if self.hidden_states is None:
            raise SequenceError("the hidden states were not sent")
        return self.hidden_states


def _require_rows(hidden_states: Tensor, groups: list[SequenceGroupMetadata]) -> None:
    if len(groups) != len(hidden_states):
        raise SequenceError(f"{len(hidden_states)} hidden states for {len(groups)} groups")
