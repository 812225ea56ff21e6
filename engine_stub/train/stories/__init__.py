"""Stories from a grammar: the text that the bundled model is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from engine_stub.train.stories.cast import Scope, draw_cast, draw_circumstances
from engine_stub.train.stories.grammar import expand
from engine_stub.train.stories.leadins import LeadIn, draw_lead_in
from engine_stub.train.stories.plots import DIGRESSIONS, ENDINGS, OPENINGS, PLOTS, Plot

_SMALL_WORDS = frozenset(
    ("a", "an", "and", "at", "by", "for", "in", "not", "of", "on", "the", "to")
)
_CHAPTERS = ("One", "Two", "Three", "Four", "Five")


@dataclass(frozen=True)
class Document:
    """A lead-in (perhaps empty) and the story that follows it; together they are one text."""

    lead_in: str
    story: str


def draw_document(rng: Random) -> Document:
    """Draw a lead-in and a story that goes on from it."""
    lead_in = draw_lead_in(rng)
    scope = draw_cast(rng, lead_in.given)
    start = lead_in.opener
    if lead_in.bridges and rng.random() < 0.5:
        start += expand(rng, rng.choice(lead_in.bridges), scope).strip() + "\n\n"
    body = _chapters(rng, scope, lead_in) if rng.random() < 0.06 else _story(rng, scope, lead_in)
    return Document(lead_in.text, start + body)


def _story(rng: Random, scope: Scope, lead_in: LeadIn) -> str:
    plot = _choose_plot(rng, lead_in)
    title = ""
    if rng.random() < 0.2:
        title = _title(rng, plot, scope) + "\n\n"
    opening = expand(rng, rng.choice(OPENINGS), scope)
    return title + _paragraphs(rng, [opening, *_tell(rng, plot, scope, detail=rng.random())])


def _chapters(rng: Random, scope: Scope, lead_in: LeadIn) -> str:
    """Return two to four short plots about the same friends under chapter headings."""
    count = rng.randint(2, 4)
    plots = [_choose_plot(rng, lead_in), *rng.sample(PLOTS, count - 1)]
    chapters = []
    for number, plot in zip(_CHAPTERS, plots, strict=False):
        passages = _tell(rng, plot, scope, detail=0.3 * rng.random())
        if number == "One":
            passages.insert(0, expand(rng, rng.choice(OPENINGS), scope))
        heading = f"Chapter {number}: {_title(rng, plot, scope)}"
        chapters.append(f"{heading}\n\n{_paragraphs(rng, passages)}")
        draw_circumstances(rng, scope, {"place": scope["place"]})
    return "\n\n".join(chapters)


def _choose_plot(rng: Random, lead_in: LeadIn) -> Plot:
    """Return a plot that can use what the lead-in gave, as far as that is to be had."""
    for slot in ("item", "word"):
        if slot in lead_in.given:
            fitting = [plot for plot in PLOTS if _mentions(plot, slot)]
            return rng.choice(fitting)
    return rng.choice(PLOTS)


def _mentions(plot: Plot, slot: str) -> bool:
    """Tell whether every telling of some beat of `plot` names `slot`."""
    marks = ("{item}", "{thing}") if slot == "item" else (f"{{{slot}}}",)
    return any(
        beat.chance == 1.0
        and all(any(mark in telling for mark in marks) for telling in beat.tellings)
        for beat in plot.beats
    )


def _title(rng: Random, plot: Plot, scope: Scope) -> str:
    first, *rest = expand(rng, rng.choice(plot.titles), scope).split()
    return " ".join(
        [first, *(word if word in _SMALL_WORDS else word.capitalize() for word in rest)]
    )


def _tell(rng: Random, plot: Plot, scope: Scope, detail: float) -> list[str]:
    """Return the passages of `plot`; `detail` from 0 to 1 says how much time the story takes."""
    passages = []
    digressions = iter(rng.sample(DIGRESSIONS, len(plot.beats)))
    for index, beat in enumerate(plot.beats):
        if beat.chance < 1.0 and rng.random() > 2 * detail * beat.chance:
            continue
        if index and rng.random() < 0.7 * detail:
            passages.append(expand(rng, next(digressions), scope))
        passages.append(expand(rng, rng.choice(beat.tellings), scope))
    passages.append(expand(rng, rng.choice(ENDINGS), scope))
    if rng.random() < 0.3:
        passages.append(
            expand(rng, "[|The moral: |As the {elder_kind} says: ]", scope)
            + rng.choice(plot.morals)
        )
    return [passage for passage in passages if passage]


def _paragraphs(rng: Random, passages: list[str]) -> str:
    """Join `passages`, a new paragraph after every few of them."""
    span = rng.choice((1, 2, 3, 4, 100))
    return "\n\n".join(
        " ".join(passages[start : start + span]) for start in range(0, len(passages), span)
    )
