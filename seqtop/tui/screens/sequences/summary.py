"""The headline of the selected sequence or group, and the sentence that explains its status."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import NamedTuple

from textual import events
from textual.message import Message

from seqtop.sequence import SamplingParams
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import is_prompt_unknown, sequence_name, stage, status_word
from seqtop.state.groups import Group
from seqtop.state.status_sentence import status_sentence
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.checks import sequence_sentence
from seqtop.tui.navigation import findings_about
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.sequence_label import glyph
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, text_width
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.ui_state import UiState

_WORD = re.compile(r"\bstep (?P<step>\d(?:[\d,]{0,18}\d)?)(?![\d,]*\d)|[^\s,;()]+")
"""A step, or a word. An id of a client may look like a step whose number is too long to be one."""


class Link(NamedTuple):
    """A part of a sentence that names a step or a request."""

    start: int
    end: int
    step: int | None
    request_id: str
    """The request, if it is not a step."""


class Summary(LineView):
    """The headline and the sentence. A click on a step or a request in it goes there."""

    class StepChosen(Message):
        """A step was clicked."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    class RequestChosen(Message):
        """A request was clicked."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    def __init__(self, ui: UiState) -> None:
        super().__init__(id="summary")
        self.border_title = "Sequence"
        self._ui = ui
        self._height = 0
        self._cells: list[list[tuple[int, int, Link]]] = []
        """For each line the first column, and the one after the last, of each link in it."""

    def update(self, most: int) -> None:
        """Draws the lines, of which the sentence takes `most`. Called under the lock of `ui`."""
        width = max(self.size.width - 2, 1)
        row_id, selection = self._ui.cursor.seq_id, self._ui.selection
        group = None if row_id is None else self._ui.view.grouped.group(row_id)
        found: list[Link] = []
        if group is not None:
            stats = self._ui.state.stats
            head = group_headline(group, None if stats is None else stats.num_used_blocks, width)
            sentence = group_sentence(group)
        elif selection is not None:
            head = headline(*selection, width, is_stale=self._ui.is_stale)
            sequence = selection[1]
            findings = findings_about(self._ui, sequence)
            status = status_sentence(self._ui.state, self._ui.view, sequence)
            sentence = safe_line(f"{sequence_sentence(findings)} {status}".lstrip())
            found = [
                link
                for link in links(sentence, self._ui.state.requests)
                if link.request_id != sequence.request_id
            ]
        else:
            self._cells = []
            if self._height != (height := 2 + self.gutter.height):
                self.styles.height = self._height = height
            self.set_lines([(("No sequence is selected.", "dim"),)])
            return
        breaks = wrap(sentence, width)
        ends = [""] * len(breaks)
        if len(breaks) > most:  # the end of the sentence is cut off
            breaks[most - 1 :] = wrap(sentence, width - 2, breaks[most - 1][0])[:1]
            ends[most - 1 :] = [" …"]
        breaks = [(start, start + len(sentence[start:end].rstrip())) for start, end in breaks]
        height = 1 + len(breaks) + self.gutter.height
        if self._height != height:
            self.styles.height = self._height = height
        self._cells = [[], *(_cells(sentence, start, end, found) for start, end in breaks)]
        lines = [
            (*_marked(sentence, start, end, found), (dots, PLAIN))
            for (start, end), dots in zip(breaks, ends, strict=True)
        ]
        self.set_lines([head, *lines])

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None or at.y >= len(self._cells):
            return
        for left, right, link in self._cells[at.y]:
            if left <= at.x < right:
                chosen = (
                    self.RequestChosen(link.request_id)
                    if link.step is None
                    else self.StepChosen(link.step)
                )
                self.post_message(chosen)


def links(sentence: str, requests: Container[str]) -> Iterator[Link]:
    """Returns the steps that a sentence names, and those of the given requests."""
    for match in _WORD.finditer(sentence):
        if match["step"]:
            yield Link(*match.span(), int(match["step"].replace(",", "")), "")
        elif (word := match[0].rstrip(".:")) in requests:
            yield Link(match.start(), match.start() + len(word), None, word)


def _cells(sentence: str, start: int, end: int, found: list[Link]) -> list[tuple[int, int, Link]]:
    """Returns the columns of the links in the line from index `start` to `end`."""
    return [
        (
            text_width(sentence[start : max(link.start, start)]),
            text_width(sentence[start : min(link.end, end)]),
            link,
        )
        for link in found
        if link.start < end and link.end > start
    ]


def _marked(sentence: str, start: int, end: int, found: list[Link]) -> Iterator[StyledText]:
    """Returns the line from index `start` to `end`, its links in their style."""
    at = start
    for link in found:
        if link.start < end and link.end > start:
            left, right = max(link.start, start), min(link.end, end)
            yield sentence[at:left], PLAIN
            yield sentence[left:right], "link"
            at = right
    yield sentence[at:end], PLAIN


def headline(
    request: RequestState, sequence: SequenceState, width: int, *, is_stale: bool = False
) -> Line:
    """Returns the name, the status and the request's parameters in one line."""
    sign, style = glyph(request, sequence, is_stale=is_stale)
    at = stage(sequence)
    more = "+" if is_prompt_unknown(request, sequence) else ""
    params = request.sampling_params
    parameters: list[tuple[int, Line]] = []
    if params is not None:
        parameters.append((3, ((f"max {fmt.count(params.max_tokens)} tokens", "dim"),)))
        parameters.append((4, ((f"temperature {params.temperature:g}", "dim"),)))
        parameters += [(7, ((words, "dim"),)) for words in _other_parameters(params)]
    elif request.pooling_params is not None:
        parameters.append((3, (("pooling", "dim"),)))
    return row(
        [
            (0, ((safe_line(sequence_name(request, sequence)), "title"),)),
            (1, ((f"{sign} {status_word(request, sequence)}", style),)),
            (2, ((at.name.lower(), style),) if at else ()),
            (5, ((f"seq {sequence.seq_id}", "dim"),)),
            (2, ((f"{fmt.count(sequence.num_prompt_tokens)}{more} prompt", "dim"),)),
            (2, ((f"{fmt.count(len(sequence.output_token_ids))} out", "dim"),)),
            (5, _drafts(sequence)),
            (6, _drafts_by_position(request)),
            *parameters,
            (6, ((f"priority {fmt.count(request.priority)}", "dim"),) if request.priority else ()),
        ],
        width,
    )


def group_headline(group: Group, num_used_blocks: int | None, width: int) -> Line:
    """Returns the name and the present figures of a group in one line.

    Args:
        group: The figures of the group.
        num_used_blocks: The blocks in any table, of which the group has a share; `None` if unknown.
        width: The cells of the line.
    """
    blocks = fmt.plural(group.num_blocks, "block")
    if num_used_blocks:
        blocks += f", {fmt.percent(group.num_blocks, num_used_blocks)} of those in use"
    return row(
        [
            (0, ((safe_line(group.name) or "(none)", "title"),)),
            (0, ((fmt.plural(group.num_requests, "request"), "strong"),)),
            (1, _number("●", group.num_running, "running")),
            (1, _number("○", group.num_waiting, "waiting")),
            (2, ((blocks, "computed"),)),
        ],
        width,
    )


def _number(sign: str, number: int, status: str) -> Line:
    """Returns a number of sequences by status, dim if there is none."""
    return ((f"{sign} {fmt.count(number)} {status}", status if number else "dim"),)


def group_sentence(group: Group) -> str:
    """Returns the sums of a group in one sentence."""
    parts = [
        f"{group.num_prompt_tokens:,} prompt and {group.num_output_tokens:,} output tokens",
        fmt.plural(group.num_preemptions, "preemption"),
        f"{fmt.seconds(group.waited_seconds)} in the queue",
    ]
    if group.ttft_seconds is not None:
        parts.append(f"median TTFT {fmt.seconds(group.ttft_seconds)}")
    if group.harm_seconds is not None:
        parts.append(f"delayed others, or each other, for {fmt.seconds(group.harm_seconds)}")
    return f"All its requests together: {'; '.join(parts)}."


_NUMBERS = (
    "n", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "logprobs", "prompt_logprobs",
)  # fmt: skip
_SWITCHES = ("ignore_eos", "include_stop_str_in_output")
_LISTS = ("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words")
_DEFAULTS = SamplingParams()
_MOST_POSITIONS = 8


def _other_parameters(params: SamplingParams) -> Iterator[str]:
    """Returns the parameters of sampling that differ from the defaults, by their names in vLLM.

    Of lists it is the length: they may be long, and are not published by a redacted stream.
    """
    for name in _NUMBERS:
        if (value := getattr(params, name)) is not None and value != getattr(_DEFAULTS, name):
            yield f"{name} {value}" if isinstance(value, int) else f"{name} {value:g}"
    for name in _SWITCHES:
        if getattr(params, name):
            yield name
    for name in _LISTS:
        if values := getattr(params, name):
            yield f"{name}: {len(values)}"
    if params.guided_decoding is not None:
        yield "guided_decoding"


def _drafts_by_position(request: RequestState) -> Line:
    """Returns the part of the drafts that were accepted up to each position, if it is known."""
    # The first count is that of all forward passes.
    passes, *accepted = (request.metrics.spec_token_acceptance_counts or [0])[: 1 + _MOST_POSITIONS]
    if not passes or not any(accepted):
        return ()
    return ((" ".join(["by position", *(fmt.percent(num, passes) for num in accepted)]), "dim"),)


def _drafts(sequence: SequenceState) -> Line:
    """Returns the number of accepted draft tokens, if any were drafted."""
    if not sequence.num_draft_tokens:
        return ()
    accepted, drafted = (
        fmt.count(sequence.num_accepted_tokens or 0),
        fmt.count(sequence.num_draft_tokens),
    )
    return ((f"{accepted} of {drafted} drafted", "dim"),)
