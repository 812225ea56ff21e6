"""The output tokens of one sequence: id, text, log-probability and alternatives."""

import itertools
import math
from collections.abc import Sequence

from seqtop.state import SequenceState
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.line_view import DrawnLine
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.screens.sequences.pane import ScrollablePane
from seqtop.tui.ui_state import UiState
from seqtop.wire.arrays import Ints

_TITLES = f"{'#':>7} {'id':>8}  {'text':<14} {'logprob':>8} {'p':>5}  alternatives"


class TokenList(ScrollablePane):
    """A line for each output token of the selected sequence, the newest first."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="tokens", title="Tokens")
        self._lengths: Ints | None = None
        self._ends: list[int] = []
        """The index at which the text of each token of `_lengths` ends."""

    def update(self) -> None:
        if self.outer_size:
            self.set_height(self._num_lines)
            self.refresh_changed()

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        with self._ui.lock:
            indices = range(top, min(top + count, self._num_lines))
            return [(self._line(index), PLAIN) for index in indices]

    @property
    def _num_lines(self) -> int:
        selection = self._ui.selection
        return 1 if selection is None else 1 + len(selection[1].output_token_ids)

    def _line(self, index: int) -> Line:
        selection = self._ui.selection
        if selection is None or not selection[1].output_token_ids:
            return (("No output tokens yet.", "dim"),)
        if index == 0:
            titles = _TITLES + sum_of_logprobs(selection[1])
            return ((titles if len(titles) <= self.text_width else _TITLES, "dim"),)
        sequence = selection[1]
        place = len(sequence.output_token_ids) - index
        return token_line(sequence, place, self.text_width, self._text(sequence, place))

    def _text(self, sequence: SequenceState, place: int) -> str:
        """Returns the text that a token added, if it is known."""
        lengths = sequence.text_lengths
        if lengths is not self._lengths:
            self._lengths, self._ends = lengths, []
        if not 0 <= place < len(lengths) or lengths[place] <= 0:
            return ""
        del self._ends[-1:]  # the text of the last token may have grown
        last = self._ends[-1] if self._ends else 0
        for length in itertools.islice(lengths, len(self._ends), None):
            last += max(length, 0)
            self._ends.append(last)
        unknown = place > 0 and lengths[place - 1] < 0  # it was published together with others
        end = self._ends[place]
        return "" if unknown else sequence.text[end - lengths[place] : end]


def sum_of_logprobs(sequence: SequenceState) -> str:
    """Returns the log-probability of the whole output, vLLM's `cumulative_logprob`, and the mean.

    Empty without output, and if that of a token is unknown.
    """
    count = len(sequence.output_logprobs)
    total = sequence.cumulative_logprob
    if not 0 < len(sequence.output_token_ids) <= count or not math.isfinite(total):
        return ""
    return f" · sum {total:.2f}, mean {total / count:.3f}"


def token_line(sequence: SequenceState, place: int, width: int, text_delta: str = "") -> Line:
    """Returns the line of output token `place` (from 0), which added `text_delta` to the text."""
    token = sequence.output_token_ids[place]
    # After full metadata corrected the tokens, there may be fewer log-probabilities than tokens.
    known = place < len(sequence.output_logprobs)
    logprob = sequence.output_logprobs[place] if known else None
    candidates = sequence.top_logprobs.get(place) if sequence.top_logprobs else {}
    own = candidates.get(token)
    text = repr((own.decoded_token if own else "") or text_delta)[1:-1] or fmt.UNKNOWN
    value = f"{logprob:.3f}" if logprob is not None else fmt.UNKNOWN
    share = fmt.percent(_probability(logprob))
    others = sorted(
        ((logprob, other) for other, logprob in candidates.items() if other != token),
        key=lambda pair: -pair[0].logprob,
    )
    alternatives = "  ".join(
        f"{repr(logprob.decoded_token)[1:-1] if logprob.decoded_token else other}"
        f" {fmt.percent(_probability(logprob.logprob))}"
        for logprob, other in others
    )
    unsure = logprob is not None and logprob < -1.0
    return fitted(
        (
            (f"{place:>7} ", "dim"),
            (f"{token:>8}  ", "strong"),
            *fitted(((safe_text(text), PLAIN),), 14),
            (f" {value:>8} {share:>5}  ", "waiting" if unsure else PLAIN),
            (safe_text(alternatives), "dim"),
        ),
        width,
    )


def _probability(logprob: float | None) -> float | None:
    return math.exp(min(logprob, 0.0)) if logprob is not None and logprob == logprob else None
