"""A growing text, wrapped to a width and wrapped again only where it grew."""

import re
from bisect import bisect_right

from rich.cells import cell_len, get_character_cell_size

from seqtop.sanitize import safe_text
from seqtop.tui.rendering.style import PLAIN, Line, Span
from seqtop.tui.screens.sequences.token_marks import BORDER, Marking, TokenMarks

_WORD = re.compile(r"\n|[^\S\n]+|[^\s]+")


def wrap(text: str, width: int, start: int = 0) -> list[tuple[int, int]]:
    """Where the lines of `text` from `start` on begin and end, at most `width` cells each.

    Breaks at spaces, inside words only where a word alone is too long. Spaces at a break that
    do not fit are left out. There is always a last line, maybe empty, to write on.
    """
    width = max(width, 2)  # one wide character
    lines: list[tuple[int, int]] = []
    line_start = end = start
    used = 0
    for found in _WORD.finditer(text, start):
        word, word_start = found[0], found.start()
        if word == "\n":
            lines.append((line_start, end))
            line_start = end = found.end()
            used = 0
            continue
        size = cell_len(word)
        if used + size <= width:
            used += size
            end = found.end()
            continue
        if word.isspace():  # the next word, if any, opens a line
            used = width
            continue
        if used:
            lines.append((line_start, end))
            line_start, used = word_start, 0
        for index in range(word_start, found.end()):
            size = get_character_cell_size(text[index])
            if used + size > width:
                lines.append((line_start, index))
                line_start, used = index, 0
            used += size
        end = found.end()
    lines.append((line_start, end))
    return lines


class WrappedText:
    """A prompt and the output that follows it, as lines of a width."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._asked: tuple[str, int, Marking] | None = None
        self._output = ""
        self._num_tokens = 0
        """Of `_output`, those whose marks have been made."""
        self._text = ""
        self._runs: list[tuple[int, str]] = []
        """Where in `_text` stretches of one ink end, and the ink."""
        self._breaks: list[tuple[int, int]] = []
        self._new_start = 0

    def update(
        self, prompt: str, output: str, num_new: int, width: int, marks: TokenMarks | None = None
    ) -> None:
        """Show this `output` after `prompt`, its last `num_new` characters bright.

        Wraps only what was appended, as long as prompt and width stay what they were, and `marks`
        are of one kind. Where these show likelihoods, nothing else is bright.
        """
        asked = prompt, width, marks.marking if marks else "plain"
        num_tokens = len(marks.lengths) if marks else 0
        is_more = output.startswith(self._output) and num_tokens >= self._num_tokens
        if self._asked != asked or not is_more:
            self._asked = asked
            self._restart(prompt, width)
        if marks and marks.marking == "likelihood":
            num_new = 0
        first_changed = self._new_start
        appended = output[len(self._output) :]
        self._output = output
        if appended:
            num_old = max(len(appended) - max(num_new, 0), 0)
            pieces: list[Span] = [(appended[:num_old], PLAIN), (appended[num_old:], PLAIN)]
            if marks:
                pieces = marks.pieces(appended, self._num_tokens)
            self._new_start = -1
            for text, ink in pieces:
                if num_old <= 0 and self._new_start < 0:
                    self._new_start = len(self._text)
                self._append(safe_text(text, newline="\n"), ink)
                num_old -= 0 if (text, ink) == BORDER else len(text)
            if self._new_start < 0:
                self._new_start = len(self._text)
            last_line, _ = self._breaks.pop()
            first_changed = min(first_changed, last_line)  # its last word may have moved on
            self._breaks += wrap(self._text, width, last_line)
            self._num_tokens = marks.num_told if marks else 0
        if num_new <= 0:
            self._new_start = len(self._text)
        self._draw(first_changed)

    def _restart(self, prompt: str, width: int) -> None:
        self._output, self._num_tokens = "", 0
        self._text = safe_text(prompt, newline="\n")
        self._runs = [(len(self._text), "dim")]
        self._breaks = wrap(self._text, width)
        self._new_start = 0

    def _append(self, text: str, ink: str) -> None:
        if not text:
            return
        self._text += text
        if self._runs[-1][1] == ink:
            self._runs.pop()
        self._runs.append((len(self._text), ink))

    def _draw(self, first_changed: int) -> None:
        """Make the lines anew from the one that holds character `first_changed` on."""
        kept = bisect_right(self._breaks, first_changed, key=lambda line: line[0])
        kept = min(max(kept - 1, 0), len(self.lines))
        self.lines[kept:] = [self._line(start, end) for start, end in self._breaks[kept:]]

    def _line(self, start: int, end: int) -> Line:
        spans: list[Span] = []
        run = bisect_right(self._runs, start, key=lambda each: each[0])
        while start < end:
            run_end, ink = self._runs[run]
            stop = min(run_end, end)
            if ink == PLAIN and start >= self._new_start:
                ink = "delta"
            elif ink == PLAIN and stop > self._new_start:
                stop = self._new_start
            spans.append((self._text[start:stop], ink))
            run += stop == run_end
            start = stop
        return tuple(spans)
