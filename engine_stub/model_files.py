"""Reads the small files of a model directory, which is untrusted, with a limit on their size."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 2**24
"""The largest configuration, template or index that is read. Those of large models have 1 MiB."""


def read_model_file(path: Path) -> str:
    """Returns the text of a file.

    Raises:
        ValueError: The file is larger than `MAX_BYTES`, or is not UTF-8.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return content.decode()
