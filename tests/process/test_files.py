"""Files that a user names are written and read whatever is prepared at their paths."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from seqtop.process import files


def write(path: Path, content: bytes, *, overwrite: bool, at_once: bool) -> None:
    if at_once:
        with files.writing(path, overwrite=overwrite) as file:
            file.write(content)
        return
    handle = files.create(path, overwrite=overwrite)
    try:
        assert os.fstat(handle).st_ino == path.stat().st_ino, "it can be read from the beginning"
        os.write(handle, content)
    finally:
        os.close(handle)


@pytest.fixture(params=[True, False], ids=["at once", "over time"])
def at_once(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=["file", "link to a file", "dangling link", "link to itself", "hard link"])
def prepared(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A path at which somebody has put something, and beside it the file `target`."""
    path, target = tmp_path / "path", tmp_path / "target"
    target.write_text("years of work")
    target.chmod(0o644)
    match request.param:
        case "file":
            path.write_text("old")
            path.chmod(0o666)
        case "link to a file":
            path.symlink_to(target)
        case "dangling link":
            path.symlink_to(tmp_path / "nothing")
        case "link to itself":
            path.symlink_to(path)
        case _:
            path.hardlink_to(target)
    return path


def interrupt(file: BinaryIO) -> None:
    file.write(b"new")
    raise KeyboardInterrupt


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def test_a_path_is_replaced_and_never_written_through(prepared: Path, *, at_once: bool) -> None:
    before, target = names(prepared.parent), prepared.with_name("target")
    write(prepared, b"new", overwrite=True, at_once=at_once)
    assert stat.S_ISREG(prepared.lstat().st_mode)
    assert stat.S_IMODE(prepared.lstat().st_mode) == 0o600
    assert prepared.read_bytes() == b"new"
    assert target.read_text() == "years of work"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert names(prepared.parent) == before


def test_a_file_stays_unless_it_is_to_be_replaced(prepared: Path, *, at_once: bool) -> None:
    before = names(prepared.parent), prepared.lstat()
    with pytest.raises(FileExistsError):
        write(prepared, b"new", overwrite=False, at_once=at_once)
    after = names(prepared.parent), prepared.lstat()
    assert [after[0], after[1].st_ino, after[1].st_size, after[1].st_mode] == [
        before[0],
        before[1].st_ino,
        before[1].st_size,
        before[1].st_mode,
    ]


def test_paths_that_are_no_files_are_refused(tmp_path: Path, *, at_once: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    before = names(tmp_path)
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "link", Path("/dev/null")):
        with pytest.raises(OSError, match="it is not a file"):
            write(path, b"new", overwrite=True, at_once=at_once)
    assert names(tmp_path) == before
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "no" / "file", b"new", overwrite=True, at_once=at_once)


def test_longest_name(tmp_path: Path, *, at_once: bool) -> None:
    path = tmp_path / ("x" * 255)
    write(path, b"new", overwrite=False, at_once=at_once)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_exception_leaves_what_was_there(tmp_path: Path, *, overwrite: bool) -> None:
    path = tmp_path / "path"
    if overwrite:
        path.write_text("old")
    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt), files.writing(path, overwrite=overwrite) as file:
        interrupt(file)
    assert names(tmp_path) == before
    assert not overwrite or path.read_text() == "old"


def test_a_file_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "path"
    with pytest.raises(FileExistsError), files.writing(path, overwrite=False):
        path.write_text("of another program")
    assert path.read_text() == "of another program"
    assert names(tmp_path) == {"path"}


def test_a_file_for_others_can_be_read_by_them(tmp_path: Path) -> None:
    path = tmp_path / "path"
    with files.writing(path, overwrite=False, mode=0o644):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_only_the_beginning_of_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a file|directory"):
            files.read(path, 10)
    (tmp_path / "file").write_bytes(b"0123456789abc")
    assert files.read(tmp_path / "file", 10) == b"0123456789"
