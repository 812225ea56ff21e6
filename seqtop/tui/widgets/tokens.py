"""The output tokens of one sequence: id, text, log-probability and what else it might have been."""

import math

from seqtop import format as fmt
from seqtop.safe import safe_text
from seqtop.state import SequenceState
from seqtop.tui.feed import Feed
from seqtop.tui.ink import PLAIN, Line, fitted
from seqtop.tui.widgets.long_lines import LongLines

_TITLES = f"{'#':>7} {'id':>8}  {'text':<14} {'logprob':>8} {'p':>5}  instead"


class Tokens(LongLines):
    """A line for each output token of the selected sequence, the newest first."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed, id="tokens", title="Tokens")

    @property
    def num_lines(self) -> int:
        found = self._feed.selection
        return 1 if found is None else 1 + len(found[1].output_token_ids)

    def line_at(self, index: int) -> Line:
        found = self._feed.selection
        if found is None or not found[1].output_token_ids:
            return (("No output tokens yet.", "dim"),)
        if index == 0:
            return ((_TITLES, "dim"),)
        sequence = found[1]
        return token_line(sequence, len(sequence.output_token_ids) - index, self.text_width)


def token_line(sequence: SequenceState, place: int, width: int) -> Line:
    """Output token `place`, from nought. Its text is known where logprobs were asked for."""
    token = sequence.output_token_ids[place]
    # After a full has corrected the tokens there may be fewer log-probabilities than tokens.
    known = place < len(sequence.output_logprobs)
    logprob = sequence.output_logprobs[place] if known else None
    candidates = sequence.top_logprobs.get(place, {})
    own = candidates.get(token)
    text = repr(own.decoded_token)[1:-1] if own is not None and own.decoded_token else fmt.UNKNOWN
    value = f"{logprob:.3f}" if logprob is not None else fmt.UNKNOWN
    share = fmt.percent(_probability(logprob))
    others = sorted(
        ((each, other) for other, each in candidates.items() if other != token),
        key=lambda pair: -pair[0].logprob,
    )
    instead = "  ".join(
        f"{repr(each.decoded_token)[1:-1] if each.decoded_token else other}"
        f" {fmt.percent(_probability(each.logprob))}"
        for each, other in others
    )
    unsure = logprob is not None and logprob < -1.0
    return fitted(
        (
            (f"{place:>7} ", "dim"),
            (f"{token:>8}  ", "strong"),
            *fitted(((safe_text(text), PLAIN),), 14),
            (f" {value:>8} {share:>5}  ", "waiting" if unsure else PLAIN),
            (safe_text(instead), "dim"),
        ),
        width,
    )


def _probability(logprob: float | None) -> float | None:
    return math.exp(min(logprob, 0.0)) if logprob is not None and logprob == logprob else None
