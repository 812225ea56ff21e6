"""Filters of the list of engines: texts, and words on the engine."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from seqtop.state.condition import ENGINE_FIELDS, summary_test
from seqtop.state.filter import FilterError, words
from seqtop.tui.keymap import Notes
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import EngineSummary

EngineFilter: TypeAlias = Callable[[UiState], bool]
"""Returns whether an engine is listed; called under the lock of its display."""

EXAMPLES = "text  kv>90%  waiting>0  running=0  -lost"
HELP_NOTES: Mapping[str, Notes] = {
    "Filter": (
        ("rank-0", "in name, model, endpoint or state"),
        ("kv>90%  waiting>0", "comparisons of fields"),
        ("-lost  !running=0", "- or ! negates a term"),
    ),
    "Fields": [(key, field.help) for key, field in ENGINE_FIELDS.items()],
}
"""The notes on this filter in the help."""


def parse_engine_filter(source: str) -> EngineFilter:
    """Parses a filter that a user typed; all of its words must match.

    A word is a text in the engine's name, model, endpoint or state of the connection, in any case,
    or compares one of `ENGINE_FIELDS`.

    Raises:
        FilterError: A field is unknown, or a word is invalid.
    """
    tests: list[EngineFilter] = []
    for word in words(source, ENGINE_FIELDS):
        name = (word["field"] or "").lower()
        if name in ENGINE_FIELDS:
            tests.append(_figure_test(summary_test(word)))
        elif word["regex"] is not None or word["op"] not in {None, ":"}:
            known = ", ".join(ENGINE_FIELDS)
            raise FilterError(f"engines have no field for {word[0]!r}; there are {known}")
        else:  # with a colon it is part of an endpoint
            text = word[0][len(word["no"]) :] if word["quoted"] is None else word["quoted"]
            tests.append(_text_test(text.casefold(), is_negated=bool(word["no"])))
    return lambda ui: all(test(ui) for test in tests)


def _figure_test(holds: Callable[[EngineSummary], bool]) -> EngineFilter:
    return lambda ui: ui.summary is not None and holds(ui.summary)


def _text_test(text: str, *, is_negated: bool) -> EngineFilter:
    def test(ui: UiState) -> bool:
        summary, connection = ui.summary, ui.source.connection
        names = (summary.engine_id, summary.model) if summary else ()
        texts = (*names, ui.source.name, connection.endpoint, connection.state.name)
        return any(text in candidate.casefold() for candidate in texts) is not is_negated

    return test
