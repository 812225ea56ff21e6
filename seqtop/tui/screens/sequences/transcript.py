"""A growing text, wrapped to a width. Only the end that grew is wrapped again."""

from bisect import bisect_right

from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.style import PLAIN, Line, StyledText
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.screens.sequences.token_marks import BORDER, TokenMarks
from seqtop.tui.settings import Marking


class Transcript:
    """Wraps a prompt and the output that follows it into lines of a width."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._wrapped_for: tuple[str, int, Marking] | None = None
        self._output = ""
        self._num_tokens = 0
        """The tokens of `_output` that are marked."""
        self._text = ""
        self._runs: list[tuple[int, str]] = []
        """The end in `_text` of each run of one style, and the style."""
        self._breaks: list[tuple[int, int]] = []
        self._new_start = 0

    def update(
        self, prompt: str, output: str, num_new: int, width: int, marks: TokenMarks | None = None
    ) -> None:
        """Shows `output` after `prompt`, with its last `num_new` characters highlighted.

        Only appended text is wrapped, as long as the prompt, the width and the kind of marks stay.
        Marks that show likelihoods replace the highlighting.
        """
        wrapped_for = prompt, width, marks.marking if marks else "plain"
        num_tokens = len(marks.lengths) if marks else 0
        is_more = output.startswith(self._output) and num_tokens >= self._num_tokens
        if self._wrapped_for != wrapped_for or not is_more:
            self._wrapped_for = wrapped_for
            self._restart(prompt, width)
        if marks and marks.marking == "likelihood":
            num_new = 0
        first_changed = self._new_start
        appended = output[len(self._output) :]
        self._output = output
        if appended:
            num_old = max(len(appended) - max(num_new, 0), 0)
            pieces: list[StyledText] = [(appended[:num_old], PLAIN), (appended[num_old:], PLAIN)]
            if marks:
                pieces = marks.pieces(appended, self._num_tokens)
            self._new_start = -1
            for text, style in pieces:
                if num_old <= 0 and self._new_start < 0:
                    self._new_start = len(self._text)
                self._append(safe_text(text, newline="\n"), style)
                num_old -= 0 if (text, style) == BORDER else len(text)
            if self._new_start < 0:
                self._new_start = len(self._text)
            last_line, _ = self._breaks.pop()
            first_changed = min(first_changed, last_line)  # its last word may move to the next line
            self._breaks += wrap(self._text, width, last_line)
            self._num_tokens = marks.num_with_text if marks else 0
        if num_new <= 0:
            self._new_start = len(self._text)
        self._draw(first_changed)

    def _restart(self, prompt: str, width: int) -> None:
        self._output, self._num_tokens = "", 0
        self._text = safe_text(prompt, newline="\n")
        self._runs = [(len(self._text), "dim")]
        self._breaks = wrap(self._text, width)
        self._new_start = 0

    def _append(self, text: str, style: str) -> None:
        if not text:
            return
        self._text += text
        if self._runs[-1][1] == style:
            self._runs.pop()
        self._runs.append((len(self._text), style))

    def _draw(self, first_changed: int) -> None:
        """Makes the lines again from the one that holds character `first_changed`."""
        unchanged = bisect_right(self._breaks, first_changed, key=lambda line: line[0])
        unchanged = min(max(unchanged - 1, 0), len(self.lines))
        self.lines[unchanged:] = [self._line(start, end) for start, end in self._breaks[unchanged:]]

    def _line(self, start: int, end: int) -> Line:
        spans: list[StyledText] = []
        run = bisect_right(self._runs, start, key=lambda run: run[0])
        while start < end:
            run_end, style = self._runs[run]
            stop = min(run_end, end)
            if style == PLAIN and start >= self._new_start:
                style = "delta"
            elif style == PLAIN and stop > self._new_start:
                stop = self._new_start
            spans.append((self._text[start:stop], style))
            run += stop == run_end
            start = stop
        return tuple(spans)
