"""Drafts from the text itself: what followed the last time that it went like this.

After "prompt lookup decoding" (Saxena, 2023), vLLM's ``[ngram]``: it costs no model, and does well
where outputs repeat their prompts, as summaries, corrections and code do.
"""

from __future__ import annotations

from engine_stub.spec_decode.speculation import Draft, GeneratorOf, SpeculationOutcome
from seqtop.sequence import SequenceGroupMetadata

# Tokens at the end that are looked for earlier on: as many as can be found, within these.
_MOST_TOKENS = 3
_LEAST_TOKENS = 1


class NgramProposer:
    """Proposes what followed the first place where a sequence's last tokens occurred before."""

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        """See `Proposer.propose`."""
        del generator_of  # nothing is drawn
        drafts: dict[int, Draft] = {}
        for group in groups:
            for seq_id, data in group.seq_data.items():
                assert group.num_speculative_tokens is not None
                if found := continuation(data.get_token_ids(), group.num_speculative_tokens):
                    drafts[seq_id] = Draft(found)
        return drafts

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Nothing is learnt: all that counts is in the tokens."""


def continuation(token_ids: list[int], most: int) -> list[int]:
    """Up to `most` tokens that followed an earlier occurrence of the last ones; maybe none."""
    for size in range(min(_MOST_TOKENS, len(token_ids) - 1), _LEAST_TOKENS - 1, -1):
        end = token_ids[-size:]
        for start in range(len(token_ids) - size):
            if token_ids[start] == end[0] and token_ids[start : start + size] == end:
                return token_ids[start + size : start + size + most]
    return []
