"""Reads a `tokenizer.json` with Hugging Face's `tokenizers`, which is not a dependency."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

MAX_BYTES: Final = 2**27
"""The largest `tokenizer.json` that is read. The largest in use have 33 MB."""


class TokenizerError(ValueError):
    """A tokenizer cannot be read; `str()` is one sentence for the user."""


def read_tokenizer(path: str | Path) -> Any:
    """Returns the `tokenizers.Tokenizer` at `path`, a file or a folder with a `tokenizer.json`.

    Raises:
        TokenizerError: The package is missing, or the file cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TokenizerError(
            "reading a tokenizer needs the package tokenizers: pip install tokenizers"
        ) from error
    file = Path(path, "tokenizer.json") if Path(path).is_dir() else Path(path)
    if file.exists() and not (file.is_file() and file.stat().st_size <= MAX_BYTES):
        raise TokenizerError(
            f"the tokenizer {str(path)!r} is no regular file of at most {MAX_BYTES} bytes"
        )
    try:
        return Tokenizer.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library's own, and `PanicException`, which is no Exception
        raise TokenizerError(f"the tokenizer {str(path)!r} cannot be read: {error}") from error
