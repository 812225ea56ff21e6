"""Turn templates into sentences.

A template is plain text with two marks: ``[walked|ran|hurried]`` stands for one of its branches,
chosen at random (branches may nest and may be empty), and ``{name}`` stands for the value of that
name in the story's scope. Values are inserted as they are, so they may hold brackets and braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

_INNERMOST_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
_ARTICLE_BEFORE_VOWEL = re.compile(r"\b([Aa]) (?=[aeio]|u(?!ni|se)|honest)")
_SENTENCE_START = re.compile(r'((?:^|\n|\."?\s|[!?]\s|:\s(?="))"?)([a-z])')


def expand(rng: Random, template: str, scope: Mapping[str, str]) -> str:
    """Return one sentence or paragraph of `template`, with articles and capitals put right.

    Raises:
        KeyError: the template names a slot that `scope` lacks.
    """
    text = template
    while (choice := _INNERMOST_CHOICE.search(text)) is not None:
        branch = rng.choice(choice[1].split("|"))
        text = text[: choice.start()] + branch + text[choice.end() :]
    text = _SLOT.sub(lambda slot: scope[slot[1]], text)
    text = _ARTICLE_BEFORE_VOWEL.sub(r"\1n ", text)
    return _SENTENCE_START.sub(lambda start: start[1] + start[2].upper(), text)
