"""Snapshots of screens: what is stored, and what a test says that finds a difference."""

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.content import Content
from textual.widgets import Static

from tests.support.snapshots import Snapshots

STORED = """\
ab 狐 cd

─── styles
1: bold error 4-6, on #0000ff 9-10
"""


class Painted(App[None]):
    """Shows a word, a wide character and a blank in three styles."""

    def __init__(self, word: str = "ab", style: str = "bold $error") -> None:
        super().__init__()
        self._text = Content.from_markup(f"{word} [{style}]狐 [/]cd[on #0000ff]  [/]\n")

    def compose(self) -> ComposeResult:
        yield Static(self._text)


def snapshots(path: Path, *, update: bool = False) -> Snapshots:
    return Snapshots(path / "picture.txt", update=update)


def compare(path: Path, app: App[None]) -> str:
    """The message of a test that compares `app` with the stored snapshot."""
    with pytest.raises(pytest.fail.Exception) as failed:
        snapshots(path)(app, terminal_size=(12, 2))
    return str(failed.value)


def test_the_text_and_the_styles_are_stored(tmp_path: Path) -> None:
    assert snapshots(tmp_path, update=True)(Painted(), terminal_size=(12, 2))
    assert (tmp_path / "picture.txt").read_text(encoding="utf-8") == STORED
    assert snapshots(tmp_path)(Painted(), terminal_size=(12, 2))


def test_a_failure_has_the_lines_of_text_that_differ(tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_text(STORED, encoding="utf-8")
    said = compare(tmp_path, Painted(word="xy"))
    assert "the text differs" in said
    assert "\n-ab 狐 cd\n+xy 狐 cd\n" in said
    assert "make snapshots" in said


def test_if_the_text_is_the_same_it_has_the_styles(tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_text(STORED, encoding="utf-8")
    said = compare(tmp_path, Painted(style="#00ff00"))
    assert "the text is the same, the styles differ" in said
    assert "-1: bold error 4-6," in said
    assert "+1: #00ff00 4-6," in said


def test_a_snapshot_that_is_missing_is_no_success(tmp_path: Path) -> None:
    assert "no snapshot is stored" in compare(tmp_path, Painted())
    assert not list(tmp_path.iterdir())
