"""The characters and objects of a story, drawn once so that they stay the same to its end."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from engine_stub.train.stories import words

Scope = dict[str, str]

_SHE = {"he": "she", "him": "her", "his": "her"}
_THEY = {"they": "they", "them": "them", "their": "their"}
_WE = {"they": "we", "them": "us", "their": "our"}
_HE = {"he": "he", "him": "him", "his": "his"}
_I = {"he": "I", "him": "me", "his": "my"}

_TALES = (
    "a fish that wanted to fly|the day the clock stopped|a king without a crown|the sea|"
    "a cloud that was afraid of heights|the time they lost a shoe|a spoon that could talk"
).split("|")
_WEATHERS = "rain snow wind fog frost heat storm hail".split()
_WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_NUMBERS = "two three four five six seven eight nine ten eleven twelve twenty".split()


def invented_word(rng: Random) -> str:
    """Return a pronounceable word that means nothing."""
    return "".join(rng.choices(words.SYLLABLES, k=rng.randint(2, 4)))


def draw_cast(rng: Random, given: Mapping[str, str]) -> Scope:
    """Draw every name that the templates of `stories.plots` use.

    `given` fixes some of them: any of ``kind``, ``name``, ``friend``, ``place``, ``item`` and
    ``word``. The rest is random.
    """
    scope: Scope = {}
    _draw_hero(rng, scope, given)
    _draw_friend(rng, scope, given)
    _draw_elder(rng, scope)
    draw_circumstances(rng, scope, given)
    return scope


def draw_circumstances(rng: Random, scope: Scope, given: Mapping[str, str]) -> None:
    """Draw into `scope` all that may differ from chapter to chapter: things, places, weather."""
    item = given.get("item") or rng.choice(words.THINGS)
    adjective = rng.choice(words.THING_ADJECTIVES)
    plain = "item" in given and rng.random() < 0.5
    invention, another = rng.sample(words.INVENTIONS, 2)
    animal = rng.choice(words.ANIMALS)
    scope.update(
        item=item,
        thing=item if plain else f"{adjective} {item}",
        another_item=rng.choice([thing for thing in words.THINGS if thing != item]),
        place=given.get("place") or rng.choice(words.PLACES),
        far=rng.choice(words.FAR_PLACES),
        hidden=rng.choice(words.HIDING_PLACES),
        dish=rng.choice(words.DISHES),
        snack=rng.choice(words.SNACKS),
        colour=rng.choice(words.COLOURS),
        season=rng.choice(words.SEASONS),
        weather=rng.choice(_WEATHERS),
        weekday=rng.choice(_WEEKDAYS),
        wish=rng.choice(words.WISHES),
        contest=rng.choice(words.CONTESTS),
        invention=invention,
        device=invention.removeprefix("a "),
        another_invention=another,
        animal=animal,
        animals=_plural(animal),
        n=rng.choice(_NUMBERS),
        word=given.get("word") or invented_word(rng).capitalize(),
        wish_about=rng.choice(_TALES),
    )


def _draw_hero(rng: Random, scope: Scope, given: Mapping[str, str]) -> None:
    kind, name, pronouns = _draw_person(rng)
    kind, name = given.get("kind") or kind, given.get("name") or name
    trait = rng.choice(words.TRAITS)
    scope.update(pronouns, **_THEY, kind=kind, trait=trait, name=name, hero=name)
    scope["intro_bare"] = f"a {trait} {kind}"
    scope["intro"] = f"a {trait} {kind} {rng.choice(('named', 'called'))} {name}"
    manner = rng.random()
    if manner < 0.1:
        scope.update(_I, **_WE, hero="I", intro=f"{scope['intro']} (that was me)")
    elif manner < 0.2 and "name" not in given:
        size = rng.choice(("little", "young", "old"))
        trait = rng.choice(sorted(set(words.TRAITS) - {"tall", "tiny", "young"}))
        scope.update(name=f"{size} {kind}", hero=f"the {size} {kind}")
        scope.update(trait=trait, intro=f"a {trait} {size} {kind}", intro_bare=f"a {trait} {kind}")


def _draw_friend(rng: Random, scope: Scope, given: Mapping[str, str]) -> None:
    kind, name, pronouns = _draw_person(rng)
    while name == scope["name"] or kind == scope["kind"]:
        kind, name, pronouns = _draw_person(rng)
    kind, name = given.get("friend_kind") or kind, given.get("friend") or name
    trait = rng.choice([trait for trait in words.TRAITS if trait != scope["trait"]])
    scope.update({f"f{case}": pronoun for case, pronoun in pronouns.items()})
    scope.update(friend=name, fkind=kind, ftrait=trait, fintro_bare=f"a {trait} {kind}")
    scope["fintro"] = f"a {trait} {kind} {rng.choice(('named', 'called'))} {name}"


def _draw_elder(rng: Random, scope: Scope) -> None:
    kind = rng.choice(words.ELDERS)
    pronouns = _SHE if kind in words.WOMEN_ELDERS else _HE
    scope.update({f"e{case}": pronoun for case, pronoun in pronouns.items()})
    scope["elder_kind"] = kind


def _draw_person(rng: Random) -> tuple[str, str, Mapping[str, str]]:
    """Return a kind, a name and pronouns that go together."""
    if rng.random() < 0.5:
        names, roles, pronouns = words.GIRLS, words.GIRL_ROLES, _SHE
    else:
        names, roles, pronouns = words.BOYS, words.BOY_ROLES, _HE
    kind = rng.choice(roles if rng.random() < 0.45 else words.ANIMALS)
    name = invented_word(rng).capitalize() if rng.random() < 0.15 else rng.choice(names)
    return kind, name, pronouns


def _plural(animal: str) -> str:
    irregular = {
        "mouse": "mice", "wolf": "wolves", "goose": "geese", "deer": "deer", "sheep": "sheep",
        "fox": "foxes", "pony": "ponies", "butterfly": "butterflies",
    }  # fmt: skip
    return irregular.get(animal, f"{animal}s")
