"""The story grammar: the same stories, and templates that can be told."""

from __future__ import annotations

import hashlib
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_stub.train.stories import draw_document
from engine_stub.train.stories.cast import draw_cast
from engine_stub.train.stories.grammar import expand
from engine_stub.train.stories.plots import DIGRESSIONS, ENDINGS, OPENINGS, PLOTS

DIGEST = "9ee5720dd73e444f4567bbffe01912b2e85ab5cdb8aaacf836ffb75eca22931a"


def test_the_stories_are_those_that_the_weights_were_trained_with() -> None:
    """Another story at any seed is another corpus: train again, or change it back."""
    rng = Random(3)
    documents = [draw_document(rng) for _ in range(400)]
    text = "\0".join(f"{document.lead_in}\0{document.story}" for document in documents)
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.release("many seeds")) for n in range(1, 40))]
)
def test_every_template_can_be_told(seed: int) -> None:
    rng = Random(seed)
    scope = draw_cast(rng, {})
    templates = [*OPENINGS, *DIGRESSIONS, *ENDINGS]
    for plot in PLOTS:
        templates += [*plot.titles, *plot.morals]
        templates += [telling for beat in plot.beats for telling in beat.tellings]
    for template in templates:
        text = expand(rng, template, scope)
        assert not re.search(r"[\[\]{}|]|  | [.,!?]", text), (template, text)
        assert text.count('"') % 2 == 0, (template, text)


def test_expand_puts_articles_and_capitals_right() -> None:
    rng = Random(0)
    scope = {"kind": "owl", "he": "she", "odd": "a[b|c]{d}"}
    text = expand(rng, 'a {kind} sat. {he} was a honest {kind}! "yes." a unicorn: {odd}', scope)
    assert text == 'An owl sat. She was an honest owl! "Yes." A unicorn: a[b|c]{d}'
    with pytest.raises(KeyError, match="who"):
        expand(rng, "{who}", scope)


@given(st.integers(min_value=0, max_value=2**32))
def test_choices_nest(seed: int) -> None:
    assert expand(Random(seed), "[one|two[| and [three|four]]]", {}) in {
        "One",
        "Two",
        "Two and three",
        "Two and four",
    }
