"""Files that a user names: written and read whatever is prepared at their paths.

A new file has its owner's permissions only, and is put at its path by renaming. So a symbolic link
there is replaced and not followed, a hard link keeps the old content, and who has the old file open
sees nothing of the new one.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

AnyPath = str | os.PathLike[str]

_GZIP = b"\x1f\x8b"
"""The first bytes of a file that is compressed by gzip."""
_PREFIX = ".seqtop-"
"""The beginning of the name of a file that is not complete. The rest is as short for every path."""


@contextmanager
def writing(path: AnyPath, *, overwrite: bool, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Writes a file that is at its path when it is complete, and not at all after an exception.

    Args:
        path: The path of the file.
        overwrite: Replaces a file or a symbolic link.
        mode: The permissions of the file.

    Raises:
        FileExistsError: Something is at the path, and is not to be replaced.
        OSError: The file cannot be written, or what is at the path is not a file.
    """
    _check(path, overwrite=overwrite)
    handle, temporary = _create_beside(path)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            yield file
        _move(temporary, path, overwrite=overwrite)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def create(path: AnyPath, *, overwrite: bool) -> int:
    """Creates a file that can be read while it is written; returns its descriptor.

    Args:
        path: The path of the file.
        overwrite: Replaces a file or a symbolic link.

    Raises:
        FileExistsError: Something is at the path, and is not to be replaced.
        OSError: The file cannot be created, or what is at the path is not a file.
    """
    with writing(path, overwrite=overwrite) as file:
        return os.dup(file.fileno())


def read(path: AnyPath, max_bytes: int) -> bytes:
    """Reads the first `max_bytes` bytes of a regular file, through symbolic links.

    Raises:
        OSError: It cannot be read, or is a pipe, a device or a directory.
    """
    # Non-blocking, so that opening a pipe without a writer does not wait.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        return file.read(max_bytes)


def decompressed(data: bytes, max_bytes: int) -> bytes:
    """Returns the content of a file that may be compressed by gzip.

    Args:
        data: The file.
        max_bytes: The most bytes of the content.

    Raises:
        ValueError: It is damaged or larger; the message follows the name of the file.
    """
    if data.startswith(_GZIP):
        try:
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(max_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"cannot be decompressed: {error}") from error
    if len(data) > max_bytes:
        raise ValueError(f"is larger than {max_bytes >> 20:,} MiB")
    return data


def _check(path: AnyPath, *, overwrite: bool) -> None:
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    try:
        mode = Path(path).stat().st_mode  # through links: /dev/stdout is one, to a device
    except OSError:  # a link that leads nowhere
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))


def _create_beside(path: AnyPath) -> tuple[int, Path]:
    """Creates an empty file in the directory of `path`, with mode 0600."""
    handle, name = tempfile.mkstemp(dir=Path(path).parent, prefix=_PREFIX)
    return handle, Path(name)


def _move(temporary: Path, path: AnyPath, *, overwrite: bool) -> None:
    if not overwrite:
        # Exclusive creation fails if there is something now. What is replaced is this empty file.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    temporary.replace(path)
