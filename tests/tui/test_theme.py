"""The app with other themes."""

from itertools import combinations
from math import dist

import pytest
from rich.color import Color, ColorSystem
from textual.color import Color as TextualColor
from textual.color import rgb_to_lab
from textual.theme import Theme

from seqtop.tui import theme
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.owner_marks import OWNER_STYLES
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource


@pytest.mark.parametrize("name", ["seqtop-light", "textual-light", "nord", "dracula"])
def test_other_themes_work(app: SeqtopApp, name: str) -> None:
    with play(app) as pilot:
        app.theme = name
        pilot.pause()
        assert "req-1" in screen(app)


THEMES = [theme.DARK, theme.LIGHT]
TEXTS = "dim strong title delta computed cached running prefill waiting preempted swapped finished"
GROUNDS = "header cursor unheld unheld-cached"


def luminance(colour: Color) -> float:
    """The relative luminance of a colour, as WCAG 2.1 defines it."""
    shares = [part / 255 for part in colour.get_truecolor()]
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    """The ratio of their luminances, as WCAG 2.1 defines it."""
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("colours", ["truecolor", "256"])
@pytest.mark.parametrize("full", THEMES, ids=["dark", "light"])
def test_texts_are_legible_on_all_grounds(full: Theme, colours: str) -> None:
    """By the contrast that WCAG 2.1 asks for, 4.5 to 1."""
    shown = theme.for_terminal(full, colours)
    system = ColorSystem.EIGHT_BIT if colours == "256" else ColorSystem.TRUECOLOR

    def seen(name: str) -> Color:
        return Color.parse(shown.variables[f"style-{name}"]).downgrade(system)

    grounds = [Color.parse(shown.background or "").downgrade(system), *map(seen, GROUNDS.split())]
    for name in TEXTS.split():
        for ground in grounds:
            assert contrast(seen(name), ground) >= 4.5, (name, ground)


def chips(variables: dict[str, str]) -> list[str]:
    """The colours behind the letters of owners."""
    return [variables[f"style-{name}"] for name in OWNER_STYLES]


@pytest.mark.parametrize("full", THEMES, ids=["dark", "light"])
def test_owners_of_blocks_have_colours_that_differ(full: Theme) -> None:
    """By the distance of CIE 1976, of which 2.3 can just be noticed."""
    fills = [full.variables[f"style-{name}-fill"] for name in OWNER_STYLES]
    for least, colours in ((11.5, fills), (25, chips(full.variables))):
        labs = [rgb_to_lab(TextualColor.parse(colour)) for colour in colours]
        for one, other in combinations(labs, 2):
            assert dist((one.L, one.a, one.b), (other.L, other.a, other.b)) >= least


@pytest.mark.parametrize("colours", ["standard", "256"])
@pytest.mark.parametrize("full", THEMES, ids=["dark", "light"])
def test_terminals_with_few_colours_tell_the_owners_of_blocks_apart(
    full: Theme, colours: str
) -> None:
    system = ColorSystem.EIGHT_BIT if colours == "256" else ColorSystem.STANDARD
    variables = theme.for_terminal(full, colours).variables
    fills = [Color.parse(variables[f"style-{name}-fill"]) for name in OWNER_STYLES]
    ground = Color.parse(full.background or "").downgrade(system).number
    for colours_of_owners in (fills, [Color.parse(chip) for chip in chips(variables)]):
        shown = {colour.downgrade(system).number for colour in colours_of_owners}
        assert len(shown - {ground}) == len(OWNER_STYLES)
    for name, fill in zip(OWNER_STYLES, fills, strict=True):
        assert contrast(Color.parse(variables[f"style-{name}-text"]), fill) >= 3.5


@pytest.mark.parametrize("full", THEMES, ids=["dark", "light"])
def test_without_colours_no_owner_is_brighter_and_alerts_are_no_fainter_than_texts(
    full: Theme,
) -> None:
    shown = theme.for_terminal(full, "none").variables
    assert len(set(chips(shown))) == 1
    assert len({shown[f"style-{name}-fill"] for name in OWNER_STYLES}) == 1
    assert shown["style-preempted"] == shown["style-strong"]
    badges = [Color.parse(shown[f"style-{name}"]) for name in ("badge-live", "preempted")]
    assert contrast(*badges) >= 3


def test_a_user_who_wants_no_colours_gets_the_theme_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = SeqtopApp(ScriptedSource())
    styles = app.get_css_variables()
    assert styles["style-owner-0"] == styles["style-owner-1"]
