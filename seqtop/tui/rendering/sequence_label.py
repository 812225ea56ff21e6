"""The sign of a sequence's status and its name in few cells, the same on all screens."""

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from seqtop.sequence import SequenceStage, SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import PREEMPTED, stage, status_word
from seqtop.tui.rendering.bars import ELLIPSIS

GLYPHS = {
    "running": ("●", "running"),
    "prefill": ("◐", "prefill"),
    "waiting": ("○", "waiting"),
    PREEMPTED: ("↺", "preempted"),
    "swapped": ("⇄", "swapped"),
    "stop": ("✓", "finished"),
    "length": ("┤", "finished"),
    "abort": ("✗", "aborted"),
    "ignored": ("⊘", "aborted"),
}
"""The sign and the style of each status word, and of a running sequence in its prefill."""

_NUMBER = re.compile(r"(?:[0-9]*/)?[0-9]+$")
"""The numbers at the end: of a request and a sibling, `12/2`, or of `_parallel_sample_2`."""

_WORD_END = re.compile(r"[^0-9A-Za-z]+")

_KIND = re.compile(r"[a-z]+[-_](?=[0-9a-f]{6})")
"""The kind of an id of OpenAI's, such as `chatcmpl-`, before random characters: most share it."""


_LAST_KNOWN = ("?", "dim")


def glyph(
    request: RequestState, sequence: SequenceState, *, is_stale: bool = False
) -> tuple[str, str]:
    """Returns the sign of a sequence's status and its style.

    Args:
        request: The sequence's request.
        sequence: The sequence.
        is_stale: Whether its engine is lost: what had not ended may have ended since.
    """
    if is_stale and not SequenceStatus.is_finished(sequence.status):
        return _LAST_KNOWN
    if stage(sequence) == SequenceStage.PREFILL:
        return GLYPHS["prefill"]
    return GLYPHS[status_word(request, sequence)]


def shared_head(names: Sequence[str], room: int) -> int:
    """Returns the length of the beginning of all names that can be cut, to tell them apart.

    It ends where a word ends, so that no number is cut; 0 if no name is longer than `room`.
    """
    if len(names) < 2 or max(map(len, names)) <= room:
        return 0
    first, last = min(names), max(names)  # what these share, all between them share
    size = next(
        (at for at, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), 0
    )
    return max((match.end() for match in _WORD_END.finditer(first[:size])), default=0)


def shortened(name: str, room: int) -> str:
    """Returns a name without its middle: its beginning, and the numbers at its end.

    Instead of the kind of an id, before its random characters, there is a sign.
    """
    sign = ""
    if (kind := _KIND.match(name)) and room > 2:
        sign, name, room = ELLIPSIS, name[kind.end() :], room - 1
        if cell_len(name) <= room:
            return sign + name
    number = _NUMBER.search(name[-room:]) if room > 1 else None
    end = number[0][-(room // 2) :] if number else ""
    begin = set_cell_size(name, max(room - len(end) - 1, 0)).rstrip()
    return sign + begin + ELLIPSIS + end
