"""Comparison of a screen with a stored snapshot: a text file with the screen's text and styles.

A reviewer reads the text as it is on the screen. Below it, each line with cells in another style
than the most frequent one lists them: `12: 3-9 bold #ff0000, 20 on #303030` is the style of the
columns 3 to 9 and 20 of line 12, counted from 1. Without a background, it is the frequent one.
"""

import asyncio
import difflib
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import textual.color
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip

from seqtop.text.ascii_output import ascii_form
from seqtop.tui.theme import LIGHT

_SHOWN_ON_BLANKS = ("underline", "underline2", "reverse", "strike", "overline")
_ATTRIBUTES = ("bold", "dim", "italic", "blink", *_SHOWN_ON_BLANKS)
_SEPARATOR = "─── styles"
_HOW = "If the change is meant: make snapshots (or pytest FILE --update-snapshots)."

Act = Callable[[Pilot[Any]], Awaitable[None]]
Look = tuple[str, str, str]
"""The attributes, the colour and the background of a cell."""


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
        in_ascii: bool = False,
    ) -> bool:
        """Run `app` in a terminal of `terminal_size`, and compare its screen with the snapshot.

        With `in_ascii`, the text is what a terminal with `--ascii` gets.

        Before, `run_before` is called and the keys `press` are pressed; afterwards `run_after` is
        called. The test fails with the lines that differ; the return value is always true, so
        that a test can assert it.
        """

        async def run() -> None:
            async with app.run_test(size=terminal_size, tooltips=True, notifications=True) as pilot:
                if run_before is not None:
                    await run_before(pilot)
                await pilot.pause()
                await pilot.press(*press)
                await pilot.wait_for_scheduled_animations()
                await pilot.pause()
                text, separator, styles = picture(app).partition(_SEPARATOR)
                self._compare((ascii_form(text) if in_ascii else text) + separator + styles)
                if run_after is not None:
                    await run_after(pilot)

        asyncio.run(run())
        return True

    def _compare(self, now: str) -> None:
        if self._update:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(now, encoding="utf-8")
            return
        if not self._path.exists():
            pytest.fail(f"{self._path.name}: no snapshot is stored. {_HOW}\n{now}", pytrace=False)
        stored = self._path.read_text(encoding="utf-8")
        if now != stored:
            pytest.fail(f"{self._path.name}: {difference(stored, now)}\n{_HOW}", pytrace=False)


async def same_text_in_light_colours(pilot: Pilot[Any]) -> None:
    """Asserts that the light theme shows the same text on a light background."""
    app = pilot.app
    text, _ = parts(picture(app))
    app.theme = LIGHT.name
    await pilot.pause()
    text_in_light, (frequent, *_) = parts(picture(app))
    assert text_in_light == text
    background = frequent.partition(" on ")[2].partition(",")[0]
    assert textual.color.Color.parse(background).brightness > 0.8


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
    """The lines of a picture's text, and those of its styles: the most frequent one first."""
    text, _, styles = picture.partition(_SEPARATOR)
    return text.splitlines(), styles.splitlines()


def _diff(old: list[str], new: list[str]) -> str:
    lines = difflib.unified_diff(old, new, "stored", "now", n=0, lineterm="")
    return "\n".join(lines)


def picture(app: App[Any]) -> str:
    """The text of the screen, and below it the styles of its lines."""
    lines = list(map(_cells, app.screen._compositor.render_strips()))
    cells = list(itertools.chain.from_iterable(lines))
    background = Counter(look[2] for _, look in cells).most_common(1)[0][0]
    looks = Counter(look for text, look in cells if text != " " and look[2] == background)
    frequent = looks.most_common(1)[0][0] if looks else ("", "", background)
    text = ["".join(text for text, _ in line).rstrip() for line in lines]
    styles = [
        f"{number}: {runs}"
        for number, line in enumerate(lines, start=1)
        if (runs := ", ".join(_runs(line, frequent)))
    ]
    return "\n".join([*text, f"{_SEPARATOR} {_words(frequent)}, except", *styles, ""])


def _cells(strip: Strip) -> list[tuple[str, Look]]:
    """Each cell's text and look. The second cell of a wide character has no text."""
    cells: list[tuple[str, Look]] = []
    for text, style, _ in strip:
        look = _look(style or Style.null())
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


def _marks_blanks(look: Look) -> bool:
    return any(name in look[0].split() for name in _SHOWN_ON_BLANKS)


def _runs(line: list[tuple[str, Look]], frequent: Look) -> Iterator[str]:
    column = 1
    for look, run in itertools.groupby(line, key=itemgetter(1)):
        width = len(list(run))
        if look not in (frequent, ("", "", frequent[2])):
            columns = str(column) if width == 1 else f"{column}-{column + width - 1}"
            yield f"{columns} {_words(look, frequent[2])}"
        column += width


def _words(look: Look, background: str = "") -> str:
    attributes, color, on = look
    return " ".join(filter(None, (attributes, color, f"on {on}" if on != background else "")))


def _look(style: Style) -> Look:
    attributes = " ".join(name for name in _ATTRIBUTES if getattr(style, name))
    return attributes, _color(style.color), _color(style.bgcolor)


def _color(color: Color | None) -> str:
    if color is None:
        return "default"
    return color.name if color.triplet is None else color.triplet.hex
