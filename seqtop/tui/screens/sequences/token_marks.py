"""Marks of output tokens in a text: their borders and their likelihood.

Likelihood is underlined and bold too, for readers and terminals without colours.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from seqtop.tui.rendering.style import PLAIN, StyledText
from seqtop.tui.settings import Marking

BORDER: StyledText = ("│", "track")
UNSURE, UNLIKELY = 0.5, 0.1
"""The probabilities below which a token is underlined, and below which it is bold too."""

NEXT: dict[Marking, Marking] = {
    "plain": "borders", "borders": "likelihood", "likelihood": "plain"
}  # fmt: skip
NOTICES: dict[Marking, str] = {
    "plain": "The text is plain.",
    "borders": f"{BORDER[0]} is before each token.",
    "likelihood": f"Underlined: tokens below {UNSURE:.0%}; bold, too: below {UNLIKELY:.0%}.",
}


class TokenMarks(NamedTuple):
    """The marks of a text: their kind, and the data that they are made from."""

    marking: Marking
    lengths: Sequence[int]
    """The length of the text of each token; see `SequenceState.text_lengths`."""
    logprobs: Sequence[float]
    """The log-probability of each token, as far as it is known."""

    @property
    def num_with_text(self) -> int:
        """The number of tokens up to the last one that has text."""
        count = len(self.lengths)
        while count and self.lengths[count - 1] <= 0:
            count -= 1
        return count

    def pieces(self, text: str, first: int) -> list[StyledText]:
        """Returns `text`, the text of the tokens from `first` on, as styled pieces.

        Lengths come from the network. For any lengths, the pieces make up the whole text.
        """
        pieces: list[StyledText] = []
        at, lowest = 0, 0.0
        for token in range(first, len(self.lengths)):
            if token < len(self.logprobs):
                lowest = min(lowest, self.logprobs[token])
            if self.lengths[token] <= 0:
                continue  # its text comes with that of the next token
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
