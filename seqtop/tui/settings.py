"""How the app is to look: what users write in the configuration file, and what they left it like.

What the command line names comes first, then the file, then what was remembered. A setting that
cannot be is named and left out; the others hold.
"""

import contextlib
import difflib
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from textual.message import Message
from textual.theme import BUILTIN_THEMES

from seqtop.sanitize import safe_line
from seqtop.state import slo
from seqtop.state.fields import FIELDS
from seqtop.state.filter import FilterError, parse
from seqtop.state.latency import Latencies
from seqtop.state.ordering import Sort
from seqtop.state.slo import Slo, SloError
from seqtop.tui import theme
from seqtop.tui.feed import Feed
from seqtop.tui.screens.sequences.cells import COLUMN_KEYS, DEFAULT_COLUMNS

THEMES = (theme.DARK.name, theme.LIGHT.name, *BUILTIN_THEMES)
_LARGEST = 2**20
"""Bytes of a file that is read at all."""
_MOST_TOLD = 3
"""Problems that are told in full."""


class SettingsError(ValueError):
    """A setting that cannot be; `str()` is one sentence that says what is right."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each is `None` where nobody has said anything."""

    columns: tuple[str, ...] | None = None
    """Keys of the table's columns, in their order."""
    sort: str | None = None
    """A field, `-field` for the other way round, or `lifecycle`."""
    filter: str | None = None
    tree: bool | None = None
    """Whether sequences of one request stand together."""
    theme: str | None = None
    detail: bool | None = None
    """Whether the detail pane is shown; where there is room, if nobody has said."""

    detail_share: Annotated[int, msgspec.Meta(ge=20, le=80)] | None = None
    """Percent of the height, or of the width, that it takes."""
    latency: bool | None = None
    """Whether the panel of latencies is shown."""
    slo: dict[str, float | int | str] | None = None
    """Objectives by figure: seconds, or a text with a unit."""

    def over(self, other: "Settings") -> "Settings":
        """These settings, and those of `other` where these say nothing."""
        mine = msgspec.structs.asdict(self)
        said = {name: value for name, value in mine.items() if value is not None}
        return msgspec.structs.replace(other, **said)

    def set_up(self, feed: Feed) -> None:
        """Let `feed` show what these settings say."""
        view = feed.view
        feed.columns = self.columns or DEFAULT_COLUMNS
        feed.detail_wanted, feed.detail_share = self.detail, self.detail_share
        feed.latency_wanted = bool(self.latency)
        feed.latencies = Latencies(parse_slo(self.slo or {}))
        view.sort = parse_sort(self.sort or "lifecycle")
        view.filter = parse(self.filter or "")
        view.tree = self.tree is not False


DEFAULTS = Settings()


class SettingsChanged(Message):
    """The user has chosen settings, by name, that are to be remembered."""

    def __init__(self, changes: dict[str, object]) -> None:
        super().__init__()
        self.changes = changes


def parse_columns(text: str | Iterable[str]) -> tuple[str, ...]:
    """The keys of columns, from a list or from words separated by commas.

    Raises:
        SettingsError: a column is unknown, named twice, or there is none.
    """
    keys = tuple(word.strip() for word in (text.split(",") if isinstance(text, str) else text))
    keys = tuple(key for key in keys if key)
    for key in keys:
        if key not in COLUMN_KEYS:
            raise SettingsError(f"no column {key!r}{_perhaps(key, COLUMN_KEYS)}")
        if keys.count(key) > 1:
            raise SettingsError(f"the column {key} is named twice")
    if not keys:
        raise SettingsError(f"name at least one column, such as {','.join(DEFAULT_COLUMNS[:3])}")
    return keys


def parse_sort(text: str) -> Sort:
    """An order: a field in its own direction, `-field` the other way round, or `lifecycle`.

    Raises:
        SettingsError: the field is unknown.
    """
    turned, key = text.startswith("-"), text.removeprefix("-")
    if key == "lifecycle":
        return Sort("", turned)
    if key not in FIELDS:
        raise SettingsError(f"cannot sort by {key!r}{_perhaps(key, ['lifecycle', *FIELDS])}")
    return Sort(key, FIELDS[key].descending != turned)


def sort_text(sort: Sort) -> str:
    """What `parse_sort` understands as `sort`."""
    usual = FIELDS[sort.key].descending if sort.key else False
    return ("-" if sort.descending != usual else "") + (sort.key or "lifecycle")


def parse_filter(text: str) -> str:
    """A filter, as it is.

    Raises:
        SettingsError: it cannot be understood.
    """
    try:
        parse(text)
    except FilterError as error:
        raise SettingsError(str(error)) from error
    return text


def parse_theme(text: str) -> str:
    """The name of a theme, as it is.

    Raises:
        SettingsError: there is no such theme.
    """
    if text not in THEMES:
        raise SettingsError(f"no theme {text!r}{_perhaps(text, THEMES)}")
    return text


def parse_slo(wanted: str | Mapping[str, float | int | str]) -> Slo:
    """Objectives, as typed or by name.

    Raises:
        SettingsError: they cannot be understood.
    """
    try:
        return slo.parse(wanted) if isinstance(wanted, str) else slo.from_values(wanted)
    except SloError as error:
        raise SettingsError(str(error)) from error


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "columns": parse_columns,
    "sort": parse_sort,
    "filter": parse_filter,
    "theme": parse_theme,
    "slo": parse_slo,
}


def read(path: Path) -> tuple[Settings, list[str]]:
    """The settings in a TOML file, and a sentence for each that cannot be; nothing if no file.

    Never raises: what cannot be read at all is a sentence, too.
    """
    try:
        with path.open("rb") as file:
            values = tomllib.loads(file.read(_LARGEST).decode())
    except FileNotFoundError:
        return Settings(), []
    except OSError as error:
        return Settings(), [f"{path} cannot be read: {error.strerror}."]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return Settings(), [f"{path} is not TOML: {error}."]
    return _checked(path, values)


class SavedState:
    """What the app remembers from one run to the next, in a JSON file of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.settings, self.problems = self._load()

    def keep(self, **changes: object) -> str | None:
        """Remember; returns a sentence if the file cannot be written."""
        changed = msgspec.structs.replace(self.settings, **changes)
        if changed == self.settings:
            return None
        self.settings = changed
        try:
            self._write(msgspec.json.format(msgspec.json.encode(changed)))
        except OSError as error:
            return f"{self._path} cannot be written: {error.strerror}."
        return None

    def _load(self) -> tuple[Settings, list[str]]:
        try:
            with self._path.open("rb") as file:
                values = msgspec.json.decode(file.read(_LARGEST), type=dict[str, Any])
        except FileNotFoundError:
            return Settings(), []
        except OSError as error:
            return Settings(), [f"{self._path} cannot be read: {error.strerror}."]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Settings(), [f"{self._path} is damaged; it is begun anew."]
        # Another version of seqtop may have left what this one does not know: not worth a word.
        return _checked(self._path, values)[0], []

    def _write(self, data: bytes) -> None:
        """Replace the file as a whole, so that whoever reads it finds the old or the new."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data + b"\n")
            Path(name).replace(self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


def told(problems: Sequence[str]) -> str:
    """What is wrong with settings, harmless to terminals: the first few, and how many more."""
    more = len(problems) - _MOST_TOLD
    lines = [safe_line(problem) for problem in problems[:_MOST_TOLD]]
    return "\n".join([*lines, *([f"… and {more} more."] if more > 0 else [])])


def _checked(path: Path, values: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Those of `values` that can be, and what is wrong with the others."""
    known = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    found: dict[str, object] = {}
    problems: list[str] = []
    for key, value in values.items():
        if key not in known:
            problems.append(f"{path}: no setting {key!r}{_perhaps(key, known)}.")
            continue
        try:
            converted = msgspec.convert(value, known[key], strict=True)
            if converted is not None and key in _CHECKS:
                _CHECKS[key](converted)
        except (msgspec.ValidationError, SettingsError) as error:
            reason = str(error)
            problems.append(f"{path}: {key}: {reason[:1].lower()}{reason[1:].rstrip('.')}.")
        else:
            found[key] = converted
    return Settings(**found), problems  # type: ignore[arg-type]


def _perhaps(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f": perhaps {close[0]}" if close else f": there are {', '.join(names)}"
