"""Style sheets that all apps of this process share."""

from collections.abc import Hashable

import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_parse_rules = Stylesheet._parse_rules
_parsed: dict[Hashable, list[RuleSet]] = {}


def parse_once(patch: pytest.MonkeyPatch) -> None:
    """Shares the rules that an app has parsed with later ones that have the same colours.

    Textual parses them for each app, which was a tenth of the time of a start. It changes no rule
    after that, and shares them among the widgets of an app.
    """
    patch.setattr(Stylesheet, "_parse_rules", _parsed_rules)
    patch.setattr(RuleSet, "__hash__", object.__hash__)  # the same in C, 70,000 times at each start


def _parsed_rules(
    sheet: Stylesheet, css: str, read_from: tuple[str, str], *more: Hashable, **options: Hashable
) -> list[RuleSet]:
    variables = frozenset(sheet._variables.items())
    key = (variables, css, read_from, more, frozenset(options.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, css, read_from, *more, **options)  # type: ignore[arg-type]
    return _parsed[key]
