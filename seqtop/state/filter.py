"""The filter language, which selects sequences.

A filter is a list of words separated by spaces or commas. All of them must match:

    story                   in the request id, the prompt or the output; any case
    running                 a word of the status column finds that status, too
    "once upon"             the same with a space in it
    re:/req-[0-9]$/         a regular expression in the beginning of any of the three, any case
    status:waiting          the field holds this text; `status:waiting,swapped` for either
    request=req-7           the field is exactly this
    prompt>1000  itl<=50ms  comparisons; numbers take k, M, G, and durations us, ms, s, m, h
    pre>2  tok/s<5          a column's title names its field, too
    hit<50%                 a share takes a percent sign
    -status:stop  !preempt  a leading - or ! negates a word

A field with an unknown value matches no comparison.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from seqtop.state.expressions import MAX_ID, MAX_TEXT, ExpressionError, compile_expression
from seqtop.state.fields import FIELDS, FIELDS_BY_NAME, Field, status_words
from seqtop.state.model import RequestState, SequenceState
from seqtop.text import format as fmt

Test: TypeAlias = Callable[[RequestState, SequenceState, float], bool]

_WORD = r"""(?P<no>[-!]?)
    (?: re:/(?P<regex>(?:\\.|[^/\\])*)(?P<slash>/?)
      | "(?P<quoted>[^"]*)"?
      | (?P<field>tok/s|[a-z0-9_]+)(?P<op>:|<=|>=|!=|==?|<|>)(?:"(?P<text>[^"]*)"?|(?P<bare>\S*))
      | (?P<plain>\S+)
    )(?=\s|$)"""
_LITERAL = r'("[^"]*"?|re:/(?:\\.|[^/\\])*/?)'
"""Texts that are searched for as they are."""
_OPERATOR = "(?:<=|>=|!=|==|[:=<>])"
_NUMBER = r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?P<unit>[a-zµμ]*)"
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9} | {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0
}  # fmt: skip
UNITS = tuple(unit for unit in _UNITS if unit)
"""Units of numbers; `us` may also be written with either of Unicode's micro signs."""
_MICRO = str.maketrans("µμ", "uu")
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    ":": operator.eq,
    "!=": operator.ne,
}


class FilterError(ValueError):
    """An invalid filter; `str()` is one sentence with the reason."""


class UnknownFieldError(FilterError):
    """A filter with an unknown field; `str()` refers to the help for the list of fields."""


@dataclass(frozen=True)
class Filter:
    """A parsed filter."""

    source: str
    tests: tuple[Test, ...] = ()
    grows: bool = False
    """True if the result can change with time alone."""
    patterns: tuple[re.Pattern[str], ...] = ()
    """The patterns searched for in texts, for highlighting."""
    searches: tuple["TextSearch", ...] = ()
    """The tests that store their progress in each text."""
    fields: tuple[str, ...] = ()
    """The keys of the fields that are compared."""

    def matches(self, request: RequestState, sequence: SequenceState, now: float) -> bool:
        """Returns whether a sequence of `request` matches at the engine's time (epoch seconds)."""
        for test in self.tests:  # noqa: SIM110 (a generator costs more than most tests)
            if not test(request, sequence, now):
                return False
        return True

    def reset(self, seq_id: int | None = None) -> None:
        """Resets the search of a sequence to the beginning of its text; `None` resets all."""
        for search in self.searches:
            if seq_id is None:
                search.num_searched.clear()
            else:
                search.num_searched.pop(seq_id, None)


NO_FILTER = Filter("")


def parse(source: str) -> Filter:
    """Parses a filter that a user typed.

    Raises:
        FilterError: A field or a unit is unknown, or a regular expression is invalid.
    """
    tests: list[Test] = []
    searches: list[TextSearch] = []
    patterns: list[re.Pattern[str]] = []
    fields: list[str] = []
    grows = False
    for word in words(source):
        test = _test(word)
        if isinstance(test, TextSearch):
            searches.append(test)
        tests.append(_negated(test) if word["no"] else test)
        if not word["no"] and (pattern := _pattern(word)) is not None:
            patterns.append(pattern)
        field = FIELDS_BY_NAME.get((word["field"] or "").lower())
        if field is not None:
            fields.append(field.key)
            grows = grows or field.grows is not None
    return Filter(
        source.strip(), tuple(tests), grows, tuple(patterns), tuple(searches), tuple(fields)
    )


def words(source: str, more_fields: Iterable[str] = ()) -> Iterator[re.Match[str]]:
    """Returns the words of a filter.

    Commas may separate them, too, and blanks may be around the operator after a field.

    Args:
        source: The text.
        more_fields: Names of fields besides those of sequences.
    """
    names = "|".join(map(re.escape, sorted({*FIELDS_BY_NAME, *more_fields}, key=len)[::-1]))
    parts = re.split(_LITERAL, source)
    for index in range(0, len(parts), 2):  # the others are literal
        part = re.sub(rf",\s*(?=[-!]?(?:{names})\s*{_OPERATOR})", " ", parts[index], flags=re.I)
        parts[index] = re.sub(
            rf"(?<![^\s!-])({names})\s*({_OPERATOR})\s*", r"\1\2", part, flags=re.I
        )
    return re.finditer(_WORD, "".join(parts), re.VERBOSE | re.IGNORECASE)


class TextSearch:
    """A search for a text in requests; of a growing output, only the new part is searched.

    Call `Filter.reset` when an output is replaced instead of extended.

    Args:
        pattern: The text to search for.
        status: A word of the status column; sequences with that status match, too.
    """

    def __init__(self, pattern: re.Pattern[str], *, status: str | None = None) -> None:
        self.num_searched: dict[int, int | None] = {}
        """The characters of each sequence's output searched without a match.

        `None` if the request id or the prompt matches. A sequence in it has had both searched.
        """
        self._pattern = pattern
        self._status = status

    def __call__(self, request: RequestState, sequence: SequenceState, _: float) -> bool:
        """Returns whether the text is in the request id, the prompt, the output or the status."""
        if self._status is not None and self._status in status_words(request, sequence):
            return True
        search, text = self._pattern.search, sequence.text
        start = self.num_searched.get(sequence.seq_id, -1)
        if start is None:
            return True
        if start < 0:
            if search(request.request_id) or search(request.prompt or ""):
                self.num_searched[sequence.seq_id] = None
                return True
            start = 0
        if start > len(text):
            start = 0
        # A match is no longer than the pattern, in which some characters are escaped.
        match = search(text, max(start - len(self._pattern.pattern), 0))
        self.num_searched[sequence.seq_id] = match.start() if match else len(text)
        return match is not None


def _test(word: re.Match[str]) -> Test:
    if (pattern := _pattern(word)) is not None:
        if word["regex"] is not None:
            return _search(pattern)
        plain = (word["plain"] or "").casefold()
        return TextSearch(pattern, status=plain if plain in FIELDS["status"].values else None)
    wanted = word["bare"] if word["text"] is None else word["text"]
    return _field(word["field"].lower(), word["op"], wanted)


def _pattern(word: re.Match[str]) -> re.Pattern[str] | None:
    """Returns the pattern that a word searches texts for; `None` for a word on a field."""
    if word["regex"] is not None:
        if not word["slash"]:
            raise FilterError("the regular expression has no closing /")
        try:
            return compile_expression(word["regex"], re.IGNORECASE)
        except ExpressionError as error:
            raise FilterError(str(error)) from error
    if word["field"] is not None:
        return None
    text = word["plain"] if word["quoted"] is None else word["quoted"]
    return re.compile(re.escape(text), re.IGNORECASE)


def _search(pattern: re.Pattern[str]) -> Test:
    search = pattern.search

    def test(request: RequestState, sequence: SequenceState, _: float) -> bool:
        return bool(
            search(request.request_id[:MAX_ID])
            or search(sequence.text[:MAX_TEXT])
            or search((request.prompt or "")[:MAX_TEXT])
        )

    return test


def _field(name: str, comparison: str, wanted: str) -> Test:
    column = FIELDS_BY_NAME.get(name)
    if column is None and name == "re":
        raise FilterError(f"a regular expression needs slashes: re:/{wanted.strip('/')}/")
    if column is None:
        close = difflib.get_close_matches(name, FIELDS_BY_NAME, n=1)
        if close:
            raise FilterError(f"no field {name!r}: perhaps {close[0]}")
        raise UnknownFieldError(f"no field {name!r}: the help lists them all")
    alternatives = [_compare(column, comparison, part) for part in wanted.split(",") if part]
    if not alternatives:
        raise FilterError(f"{name}{comparison} needs a value")
    if len(alternatives) == 1:
        return alternatives[0]
    combine = all if comparison == "!=" else any
    return lambda r, s, now: combine(test(r, s, now) for test in alternatives)


def _compare(column: Field, comparison: str, wanted: str) -> Test:
    is_ordered = comparison in {"<", "<=", ">", ">="}
    if column.is_text and is_ordered:
        raise FilterError(f"{column.key} is a text: {column.key}:{wanted} finds it in any place")
    number = None
    if not column.is_text:
        number = share(wanted) if column.format is fmt.percent else quantity(wanted)
    if number is None and not column.is_text:
        raise FilterError(f"{column.key}{comparison} needs a number, not {wanted!r}")
    if column.format is fmt.percent and number is not None and number > 1:
        percent = "" if wanted.endswith("%") else f": perhaps {column.key}{comparison}{wanted}%"
        raise FilterError(f"{column.key} is a share, and at most 100%{percent}")
    whole = comparison in {"=", "==", "!="}
    # "preempted" is "preempt", and "stopped" is "stop".
    begun = (value for value in column.values if wanted.casefold().startswith(value))
    wanted = next(begun, wanted)
    if column.values and not any(
        wanted.casefold() == value if whole else wanted.casefold() in value
        for value in column.values
    ):
        close = difflib.get_close_matches(wanted.casefold(), column.values, n=1)
        hint = f"perhaps {close[0]}" if close else f"there are {', '.join(column.values)}"
        raise FilterError(f"no {column.key} {wanted!r}: {hint}")
    compare = _COMPARISONS[comparison]
    folded = wanted.casefold()

    def test(request: RequestState, sequence: SequenceState, now: float) -> bool:
        known = column.value(request, sequence, now)
        if known is None:
            return False
        if not isinstance(known, str):
            return number is not None and compare(known, number)
        texts = [known.casefold()]
        if column.also is not None:
            texts.append(column.also(sequence).casefold())
        match comparison:
            case ":":
                return any(folded in text for text in texts)
            case "=" | "==":
                return folded in texts
            case "!=":
                return folded not in texts
        return False

    return test


def quantity(text: str) -> float | None:
    """Returns the value of a number with a unit, durations in seconds; `None` for other texts.

    Raises:
        FilterError: The unit is unknown.
    """
    word = re.fullmatch(_NUMBER, text, re.IGNORECASE)
    if word is None:
        return None
    unit = word["unit"].translate(_MICRO)
    scale = _UNITS.get(unit, _UNITS.get(unit.lower()))
    if scale is None:
        raise FilterError(f"no unit {word['unit']!r}: there are {', '.join(UNITS)}")
    number = float(word["number"]) * scale
    return number if math.isfinite(number) else None


def share(text: str) -> float | None:
    """Returns the value of a share, such as `0.95` or `95%`; `None` for other texts.

    Raises:
        FilterError: The unit is unknown.
    """
    number = quantity(text.removesuffix("%"))
    return number / 100 if number is not None and text.endswith("%") else number


def number_test(name: str, comparison: str, wanted: float | None) -> Callable[[float], bool]:
    """Returns a test that compares a number with `wanted`.

    Args:
        name: The name of the field, for the error.
        comparison: One of the operators of the filter language.
        wanted: The number; `None` if the user did not type one.

    Raises:
        FilterError: There is no number.
    """
    if wanted is None:
        raise FilterError(f"{name}{comparison} needs a number")
    compare = _COMPARISONS[comparison]
    return lambda value: compare(value, wanted)


def _negated(test: Test) -> Test:
    return lambda request, sequence, now: not test(request, sequence, now)
