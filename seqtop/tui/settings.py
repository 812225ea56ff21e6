"""Settings of the app: from the command line, the configuration file and the last run.

The command line comes first, then the configuration file, then the last run. An invalid setting is
reported and left out; the others apply.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
from textual.message import Message
from textual.theme import BUILTIN_THEMES

from seqtop.checks import thresholds
from seqtop.checks.thresholds import ThresholdError, Thresholds
from seqtop.history import memory_store
from seqtop.process import files
from seqtop.state import finished, slo
from seqtop.state.fields import DEFAULT_COLUMNS, FIELDS
from seqtop.state.filter import FilterError, parse
from seqtop.state.ordering import Sort
from seqtop.state.slo import Slo, SloError
from seqtop.text.sanitize import safe_line
from seqtop.tui import theme

if TYPE_CHECKING:
    from seqtop.state.condition import Condition

HISTORY_MB = memory_store.DEFAULT_MAX_BYTES // 10**6
FINISHED_MB = finished.DEFAULT_MAX_BYTES // 10**6
THEMES = (theme.DARK.name, theme.LIGHT.name, *BUILTIN_THEMES)
_MAX_BYTES = 2**20
"""The most bytes of a file that are read."""
_MAX_PROBLEMS = 3
"""The most problems that are listed; further ones are counted."""

Marking: TypeAlias = Literal["plain", "borders", "likelihood"]
"""The property of tokens that the text of a sequence shows."""


class SettingsError(ValueError):
    """An invalid setting; `str()` is one sentence that names the valid values."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Preferences; `None` stands for the default."""

    columns: tuple[str, ...] | None = None
    """Keys of the table's columns, in their order."""
    sort: str | None = None
    """A field, `-field` for the reverse order, or `lifecycle`."""
    filter: str | None = None
    tree: bool | None = None
    """True if the sequences of a request are grouped."""
    theme: str | None = None
    ascii: bool | None = None
    """True if everything is drawn in ASCII; by default where the locale lacks a sign."""
    detail: bool | None = None
    """True if the detail pane is shown; by default where there is room."""
    detail_share: Annotated[int, msgspec.Meta(ge=20, le=80)] | None = None
    """Percent of the height, or of the width, that the detail pane takes."""
    latency: bool | None = None
    """True if the latency panel is shown."""
    slo: dict[str, float | int | str] | None = None
    """Objectives by latency figure: seconds, or a text with a unit."""
    on: tuple[str, ...] | None = None
    """Conditions. The app tells the user when one begins to hold, and when that ends."""
    history_mb: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The most megabytes of memory that the history takes."""
    finished_mb: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The most megabytes of memory that the finished requests on show take."""
    checks: dict[str, float] | None = None
    """Thresholds of the checks by name."""

    def over(self, other: "Settings") -> "Settings":
        """Returns these settings, and those of `other` where these are `None`."""
        mine = msgspec.structs.asdict(self)
        given = {name: value for name, value in mine.items() if value is not None}
        return msgspec.structs.replace(other, **given)


DEFAULTS = Settings()


class SettingsChanged(Message):
    """The user has changed settings, given by name, which are to be saved."""

    def __init__(self, changes: dict[str, object]) -> None:
        super().__init__()
        self.changes = changes


def parse_columns(text: str | Iterable[str]) -> tuple[str, ...]:
    """Parses the keys of columns, from a list or from words separated by commas.

    Raises:
        SettingsError: A column is unknown or named twice, or there is none.
    """
    keys = tuple(word.strip() for word in (text.split(",") if isinstance(text, str) else text))
    keys = tuple(key for key in keys if key)
    for key in keys:
        if key not in FIELDS:
            raise SettingsError(f"no column {key!r}{_suggestion(key, FIELDS)}")
        if keys.count(key) > 1:
            raise SettingsError(f"the column {key} is named twice")
    if not keys:
        raise SettingsError(f"name at least one column, such as {','.join(DEFAULT_COLUMNS[:3])}")
    return keys


def parse_sort(text: str) -> Sort:
    """Parses an order: a field in its usual direction, `-field` for the reverse, or `lifecycle`.

    Raises:
        SettingsError: The field is unknown.
    """
    reverse, key = text.startswith("-"), text.removeprefix("-")
    if key == "lifecycle":
        return Sort("", reverse)
    if key not in FIELDS:
        raise SettingsError(f"cannot sort by {key!r}{_suggestion(key, ['lifecycle', *FIELDS])}")
    return Sort(key, FIELDS[key].descending != reverse)


def sort_text(sort: Sort) -> str:
    """Returns the text that `parse_sort` reads as `sort`."""
    usual = FIELDS[sort.key].descending if sort.key else False
    return ("-" if sort.descending != usual else "") + (sort.key or "lifecycle")


def parse_filter(text: str) -> str:
    """Returns a filter unchanged, if it is valid.

    Raises:
        SettingsError: The filter is invalid.
    """
    try:
        parse(text)
    except FilterError as error:
        raise SettingsError(str(error)) from error
    return text


def parse_theme(text: str) -> str:
    """Returns the name of a theme unchanged, if it exists.

    Raises:
        SettingsError: There is no such theme.
    """
    if text not in THEMES:
        raise SettingsError(f"no theme {text!r}{_suggestion(text, THEMES)}")
    return text


def parse_slo(wanted: str | Mapping[str, float | int | str]) -> Slo:
    """Parses latency objectives, as typed or by name.

    Raises:
        SettingsError: They are invalid.
    """
    try:
        return slo.parse(wanted) if isinstance(wanted, str) else slo.from_values(wanted)
    except SloError as error:
        raise SettingsError(str(error)) from error


def parse_thresholds(wanted: Mapping[str, float]) -> Thresholds:
    """Parses thresholds of the checks by name.

    Raises:
        SettingsError: They are invalid.
    """
    try:
        return thresholds.from_values(wanted)
    except ThresholdError as error:
        raise SettingsError(str(error)) from error


def parse_conditions(sources: Iterable[str]) -> "list[Condition]":
    """Parses conditions.

    Raises:
        SettingsError: One is invalid.
    """
    from seqtop.state.condition import parse_condition  # needed only with conditions

    try:
        return [parse_condition(source) for source in sources]
    except FilterError as error:
        raise SettingsError(str(error)) from error


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "columns": parse_columns,
    "sort": parse_sort,
    "filter": parse_filter,
    "theme": parse_theme,
    "slo": parse_slo,
    "on": parse_conditions,
    "checks": parse_thresholds,
}


def read(path: Path) -> tuple[Settings, list[str]]:
    """Reads the settings of a TOML file; never raises.

    Returns:
        The valid settings, and a sentence for each problem. Both are empty if there is no file.
    """
    try:
        content = files.read(path, _MAX_BYTES)
    except FileNotFoundError:
        return Settings(), []
    except OSError as error:
        return Settings(), [f"{path} cannot be read: {error.strerror}."]
    import tomllib  # needed with a file only; a start without one is faster

    try:
        values = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        return Settings(), [f"{path} is not TOML: {error}."]
    return _checked(path, values)


class SavedState:
    """Settings saved from one run to the next, in a JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.settings, self.problems = self._load()

    def save(self, **changes: object) -> str | None:
        """Saves changed settings; returns a sentence if the file cannot be written."""
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
            values = msgspec.json.decode(files.read(self._path, _MAX_BYTES), type=dict[str, Any])
        except FileNotFoundError:
            return Settings(), []
        except OSError as error:
            return Settings(), [f"{self._path} cannot be read: {error.strerror}."]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Settings(), [f"{self._path} is damaged; it is replaced."]
        # Problems are not reported: another version of seqtop may have saved other settings.
        return _checked(self._path, values)[0], []

    def _write(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with files.writing(self._path, overwrite=True) as file:
            file.write(data + b"\n")


def format_problems(problems: Sequence[str]) -> str:
    """Formats problems with settings, safe for terminals: the first few, and a count of others."""
    more = len(problems) - _MAX_PROBLEMS
    lines = [safe_line(problem) for problem in problems[:_MAX_PROBLEMS]]
    return "\n".join([*lines, *([f"…and {more} more."] if more > 0 else [])])


def _checked(path: Path, values: dict[str, Any]) -> tuple[Settings, list[str]]:
    """Returns the valid settings of `values`, and a sentence for each of the others."""
    known = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    valid: dict[str, object] = {}
    problems: list[str] = []
    for key, value in values.items():
        if key not in known:
            problems.append(f"{path}: no setting {key!r}{_suggestion(key, known)}.")
            continue
        try:
            converted = msgspec.convert(value, known[key], strict=True)
            if converted is not None and key in _CHECKS:
                _CHECKS[key](converted)
        except (msgspec.ValidationError, SettingsError) as error:
            reason = str(error)
            problems.append(f"{path}: {key}: {reason[:1].lower()}{reason[1:].rstrip('.')}.")
        else:
            valid[key] = converted
    return Settings(**valid), problems  # type: ignore[arg-type]


def _suggestion(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f": perhaps {close[0]}" if close else f": there are {', '.join(names)}"
