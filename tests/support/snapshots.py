"""Comparison of a screen with a stored snapshot: a text file with the screen's text and styles.

A reviewer reads the text as it is on the screen. Below it are the styles of each line, other than
`foreground on background`: `12: bold running 3-9 15, strong on cursor 20` says that the columns 3
to 9 and 15 of line 12, counted from 1, are bold in the theme's colour `running`, on its background.
Behind a dialog, colours are `faded`.

Screens are drawn in a theme that has another colour for each role, so that the colour of a cell
tells its role, and no snapshot changes with the colours of seqtop's themes.
"""

import dataclasses
import difflib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import rich.color
from rich.cells import cell_len
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.strip import Strip
from textual.theme import Theme

from seqtop.tui import theme
from tests.support import settling
from tests.support.piloting import Pilot, play, screen, until

_SHOWN_ON_BLANKS = ("underline", "underline2", "reverse", "strike", "overline")
_ATTRIBUTES = ("bold", "dim", "italic", "blink", *_SHOWN_ON_BLANKS)
_SEPARATOR = "─── styles"
_HOW = "If the change is meant: make snapshots (or pytest FILE --update-snapshots)."

_BASE_ROLES = (
    "background", "foreground", "surface", "panel", "primary", "secondary", "accent", "success",
    "warning", "error",
)  # fmt: skip
_ROLES = (*_BASE_ROLES, *theme.DARK_STYLES)

T = TypeVar("T")
Act = Callable[[Pilot], None]
Look = tuple[str, str, str]
"""The attributes, the colour and the background of a cell."""
COLUMNS = (
    "request", "seq", "status", "stage", "prio", "prompt", "cached", "computed", "out", "blocks",
    "tps", "ttft", "itl", "waited", "why", "age", "hit", "preempt", "text",
)  # fmt: skip
"""The columns of a sequence table in a snapshot, so that a new one changes no snapshot of it."""
_USUAL = ("", "foreground", "background")
_BLANK = ("", "", "background")


def _coloured_by_role() -> Theme:
    """The dark theme with another colour for each role; their greys and blends differ, too."""
    colours = {"background": "#000000"}
    for level, name in zip(itertools.count(92, 3), _ROLES[1:], strict=False):
        colours[name] = Color(level, level, min(level + 20, 255)).hex
    base = {name: colours.pop(name) for name in _BASE_ROLES}
    variables = theme.complete(colours)
    return dataclasses.replace(theme.DARK, variables=variables, **base)  # type: ignore[arg-type]


_COLOURED_BY_ROLE = _coloured_by_role()


class Snapshots:
    """Compares screens with the snapshots of one test, or stores them.

    Args:
        path: The file of the test's snapshot.
        update: Store the screen instead of comparing it.
    """

    def __init__(self, path: Path, *, update: bool) -> None:
        self._path = path
        self._update = update

    def __call__(
        self,
        app: App[Any],
        *,
        press: Iterable[str] = (),
        terminal_size: tuple[int, int] = (80, 24),
        run_before: Act | None = None,
        run_after: Act | None = None,
        of: str = "",
    ) -> bool:
        """Run `app` in a terminal of `terminal_size`, and compare its screen with the snapshot.

        Before, `run_before` is called and the keys `press` are pressed; afterwards `run_after` is
        called. The snapshot is that of another test of the module if `of` names it. The test fails
        with the lines that differ; the return value is always true, so that a test can assert it.
        """

        app.register_theme(_COLOURED_BY_ROLE)
        theme.begin_with(app, _COLOURED_BY_ROLE.name)
        with play(app, terminal_size) as pilot:
            if run_before is not None:
                run_before(pilot)
                pilot.pause()
            pilot.press(*press)
            # Some panes read the history a little in each frame.
            until(pilot, lambda: "Reading the history" not in screen(app))
            self._compare(picture(app), of)
            if run_after is not None:
                run_after(pilot)
        return True

    def _compare(self, now: str, of: str) -> None:
        path = self._path.with_name(f"{of}.txt") if of else self._path
        if self._update and not of:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(now, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path.name}: no snapshot is stored. {_HOW}\n{now}", pytrace=False)
        stored = path.read_text(encoding="utf-8")
        if now != stored:
            pytest.fail(f"{path.name}: {difference(stored, now)}\n{_HOW}", pytrace=False)


def same_text_in_light_colours(pilot: Pilot) -> None:
    """Asserts that the light theme shows the same text on a light background."""
    app = pilot.app
    text, _ = parts(picture(app))
    app.theme = theme.LIGHT.name
    pilot.pause()
    text_in_light, _ = parts(picture(app))
    assert text_in_light == text
    assert Color.parse(app.theme_variables["background"]).brightness > 0.8


def path_of(node: pytest.Item) -> Path:
    """The file in which the snapshot of a test is stored, beside the test's module."""
    name = node.name.replace("/", "_")
    return node.path.parent / "__snapshots__" / node.path.stem / f"{name}.txt"


def difference(stored: str, now: str) -> str:
    """The lines of the text that differ; if the text is the same, those of the styles."""
    (old_text, old_styles), (new_text, new_styles) = parts(stored), parts(now)
    if old_text != new_text:
        return "the text differs:\n" + _diff(old_text, new_text)
    return "the text is the same, the styles differ:\n" + _diff(old_styles, new_styles)


def parts(picture: str) -> tuple[list[str], list[str]]:
    """The lines of a picture's text, and those of its styles."""
    text, _, styles = picture.partition(_SEPARATOR)
    return text.splitlines(), styles.splitlines()


def _diff(old: list[str], new: list[str]) -> str:
    lines = difflib.unified_diff(old, new, "stored", "now", n=0, lineterm="")
    return "\n".join(lines)


def picture(app: App[Any]) -> str:
    """The text of the screen, and below it the styles of its lines."""
    roles = _roles(app)
    lines = [_cells(strip, roles) for strip in settling.render(app)]
    text = ["".join(text for text, _ in line).rstrip() for line in lines]
    styles = [f"{numbers}: {listed}" for listed, numbers in _runs(map(_styles, lines)) if listed]
    return "\n".join([*text, _SEPARATOR, *styles, ""])


def _roles(app: App[Any]) -> dict[str, str]:
    """The role of each colour of the app's theme."""
    colours = {name: Color.parse(app.theme_variables[name]) for name in _BASE_ROLES}
    colours |= {
        name.removeprefix("style-"): Color.parse(colour)
        for name, colour in app.current_theme.variables.items()
        if name in theme.DARK_STYLES
    }
    if app.no_color:
        colours = {name: colour.monochrome for name, colour in colours.items()}
    veil = colours["background"].with_alpha(0.6)  # of the dialogs' style sheet
    roles = {f"faded {name}": colour + veil for name, colour in colours.items()} | colours
    return {colour.hex.lower(): name for name, colour in roles.items()}


def _cells(strip: Strip, roles: Mapping[str, str]) -> list[tuple[str, Look]]:
    """Each cell's text and look. The second cell of a wide character has no text."""
    cells: list[tuple[str, Look]] = []
    for text, style, _ in strip:
        look = _look(style or Style.null(), roles)
        for character in text:
            width = cell_len(character)
            if width == 0 and cells:
                cells[-1] = (cells[-1][0] + character, cells[-1][1])
                continue
            cells.append((character, _of_blank(look, cells) if character == " " else look))
            cells += [("", look)] * (width - 1)
    return cells


def _of_blank(look: Look, before: list[tuple[str, Look]]) -> Look:
    """The look of a blank, whose colour is not seen: it continues what is before it."""
    if _marks_blanks(look):
        return look
    if before and before[-1][1][2] == look[2] and not _marks_blanks(before[-1][1]):
        return before[-1][1]
    return ("", "", look[2])


@functools.cache
def _marks_blanks(look: Look) -> bool:
    return any(name in look[0].split() for name in _SHOWN_ON_BLANKS)


def _styles(line: list[tuple[str, Look]]) -> str:
    """The styles of a line other than the usual one, each with its columns."""
    columns: dict[Look, list[str]] = {}
    for look, numbers in _runs(look for _, look in line):
        if look not in (_USUAL, _BLANK):
            columns.setdefault(look, []).append(numbers)
    return ", ".join(f"{_words(look)} {' '.join(runs)}" for look, runs in columns.items())


def _runs(items: Iterable[T]) -> Iterator[tuple[T, str]]:
    """Each run of equal items, and the numbers of its first and its last, counted from 1."""
    first = 1
    for item, run in itertools.groupby(items):
        last = first + sum(1 for _ in run) - 1
        yield item, str(first) if first == last else f"{first}-{last}"
        first = last + 1


def _words(look: Look) -> str:
    attributes, color, background = look
    on = "" if background == _USUAL[2] else f"on {background}"
    return " ".join(filter(None, (attributes, color, on)))


def _look(style: Style, roles: Mapping[str, str]) -> Look:
    attributes = " ".join(name for name in _ATTRIBUTES if getattr(style, name))
    return attributes, _role(style.color, roles), _role(style.bgcolor, roles)


def _role(color: rich.color.Color | None, roles: Mapping[str, str]) -> str:
    if color is None:
        return "default"
    name = color.name if color.triplet is None else color.triplet.hex
    return roles.get(name, name)
