"""The story grammar: repeatable, varied, and consistent within a story."""

from __future__ import annotations

import re
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_stub.train.stories import draw_document
from engine_stub.train.stories.cast import draw_cast
from engine_stub.train.stories.grammar import expand
from engine_stub.train.stories.leadins import draw_lead_in
from engine_stub.train.stories.plots import DIGRESSIONS, ENDINGS, OPENINGS, PLOTS


def test_a_seed_gives_one_story() -> None:
    def stories(seed: int) -> list[str]:
        rng = Random(seed)
        return [draw_document(rng).story for _ in range(5)]

    assert stories(3) == stories(3)
    assert stories(3) != stories(4)


def test_stories_differ_in_length() -> None:
    rng = Random(5)
    lengths = sorted(len(draw_document(rng).story.split()) for _ in range(400))
    assert lengths[0] > 60
    assert lengths[40] < 150
    assert lengths[-40] > 230
    assert lengths[-1] > 400


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


def test_hero_and_friend_keep_their_names() -> None:
    """Whoever is called by name at the start is still there at the end."""
    rng = Random(2)
    names = [draw_cast(rng, {}) for _ in range(200)]
    assert all(scope["name"] != scope["friend"] for scope in names)
    assert all(scope["kind"] != scope["fkind"] for scope in names)
    first_person = [scope for scope in names if scope["hero"] == "I"]
    assert first_person
    assert {(scope["his"], scope["they"]) for scope in first_person} == {("my", "we")}


def test_stories_take_up_what_the_prompt_names() -> None:
    rng = Random(8)
    taken = asked = 0
    for _ in range(1500):
        state = rng.getstate()
        given = draw_lead_in(rng).given
        rng.setstate(state)
        story = draw_document(rng).story.lower()
        asked += len(given)
        taken += sum(value.lower() in story for value in given.values())
    assert asked > 500
    assert taken / asked > 0.85


def test_most_prompts_are_no_stories_and_some_are_long() -> None:
    rng = Random(9)
    texts = [draw_document(rng).lead_in for _ in range(1000)]
    assert 0.15 < sum(not text for text in texts) / len(texts) < 0.4
    assert len(set(texts)) > 650
    assert sum(not text.isascii() for text in texts) > 10
    assert max(map(len, texts)) > 600


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


def test_digressions_do_not_repeat_within_a_story() -> None:
    rng = Random(21)
    for _ in range(300):
        story = draw_document(rng).story
        if "Chapter Two" in story:
            continue
        sentences = re.split(r"(?<=[.!?])\s+", story)
        assert not any(one == other for one, other in pairwise(sentences) if len(one) > 25)
