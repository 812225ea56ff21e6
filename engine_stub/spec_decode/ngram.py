"""Drafts from the text itself: the tokens that followed an earlier occurrence of the last ones.

After "prompt lookup decoding" (Saxena, 2023), vLLM's ``[ngram]``. It needs no second model, and
works well where outputs repeat their prompts, as summaries, corrections and code do.
"""

from __future__ import annotations

from engine_stub.spec_decode.speculation import Draft, GeneratorOf, SpeculationOutcome
from seqtop.sequence import SequenceGroupMetadata

# Bounds on the number of last tokens that are searched for; the longest match counts.
_MOST_TOKENS = 3
_LEAST_TOKENS = 1


class NgramProposer:
    """Proposes the tokens after the first earlier occurrence of a sequence's last tokens."""

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        """Returns drafts by sequence id; see `Proposer.propose`."""
        del generator_of  # deterministic
        drafts: dict[int, Draft] = {}
        for group in groups:
            for seq_id, data in group.seq_data.items():
                assert group.num_speculative_tokens is not None
                if token_ids := continuation(data.get_token_ids(), group.num_speculative_tokens):
                    drafts[seq_id] = Draft(token_ids)
        return drafts

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Does nothing: the tokens are all that drafts depend on."""


def continuation(token_ids: list[int], most: int) -> list[int]:
    """Returns up to `most` tokens that followed an earlier occurrence of the last ones."""
    for size in range(min(_MOST_TOKENS, len(token_ids) - 1), _LEAST_TOKENS - 1, -1):
        end = token_ids[-size:]
        for start in range(len(token_ids) - size):
            if token_ids[start] == end[0] and token_ids[start : start + size] == end:
                return token_ids[start + size : start + size + most]
    return []
