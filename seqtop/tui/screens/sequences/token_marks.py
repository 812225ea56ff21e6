"""Where one output token ends and the next begins, and how likely each was, in its text.

Likelihood is told by underlining and boldness too, for eyes and terminals without colours.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from seqtop.tui.rendering.style import PLAIN, StyledText

Marking: TypeAlias = Literal["plain", "borders", "likelihood"]
"""What the text tells of its tokens."""

BORDER: StyledText = ("│", "track")
UNSURE, UNLIKELY = 0.5, 0.1
"""Probabilities below which a token is underlined, and bold besides."""

NEXT: dict[Marking, Marking] = {
    "plain": "borders", "borders": "likelihood", "likelihood": "plain"
}  # fmt: skip
REMARKS: dict[Marking, str] = {
    "plain": "The text is plain.",
    "borders": f"{BORDER[0]} stands before each token.",
    "likelihood": f"Underlined: tokens below {UNSURE:.0%}; bold, too: below {UNLIKELY:.0%}.",
}


class TokenMarks(NamedTuple):
    """What is to be seen in a text, and what it takes to see it."""

    marking: Marking
    lengths: Sequence[int]
    """Of each token; see `SequenceState.text_lengths`."""
    logprobs: Sequence[float]
    """Of each token, as far as they are known."""

    @property
    def num_told(self) -> int:
        """Tokens up to the last one that has text: what those after it say is yet to come."""
        count = len(self.lengths)
        while count and self.lengths[count - 1] <= 0:
            count -= 1
        return count

    def pieces(self, text: str, first: int) -> list[StyledText]:
        """`text`, which is that of the tokens from `first` on, in pieces.

        Lengths come from the network: whatever they are, the pieces make up the text.
        """
        pieces: list[StyledText] = []
        at, lowest = 0, 0.0
        for token in range(first, len(self.lengths)):
            if token < len(self.logprobs):
                lowest = min(lowest, self.logprobs[token])
            if self.lengths[token] <= 0:
                continue  # what it says comes with the next
            end = min(at + self.lengths[token], len(text))
            if end > at:
                if self.marking == "borders":
                    pieces.append(BORDER)
                pieces.append((text[at:end], self._style(lowest)))
            at, lowest = end, 0.0
        return [*pieces, (text[at:], PLAIN)] if at < len(text) else pieces

    def _style(self, logprob: float) -> str:
        if self.marking != "likelihood" or logprob >= math.log(UNSURE):
            return PLAIN
        return "unsure" if logprob >= math.log(UNLIKELY) else "unlikely"
