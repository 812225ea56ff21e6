"""Finds models: local directories, and repositories on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
# Excludes "consolidated.safetensors", a second copy of the weights in some repositories.
_FILES = ["*.json", "*.jinja", "model*.safetensors"]


def check_model(name: str | Path) -> None:
    """Checks without a connection that a model can be there.

    Args:
        name: A directory, or ``organisation/name`` on the Hub.

    Raises:
        FileNotFoundError: It is neither.
    """
    if not Path(name).is_dir() and not _REPOSITORY.fullmatch(str(name)):
        raise FileNotFoundError(f"there is no model directory {name}")


def find_model(name: str | Path) -> Path:
    """Returns the directory of a model, after downloading it to the Hub's cache if necessary.

    Args:
        name: A directory, or ``organisation/name`` on the Hub.

    Raises:
        FileNotFoundError: There is no such model, or it is not in the cache and the Hub cannot be
            reached.
    """
    check_model(name)
    path = Path(name)
    if path.is_dir():
        return path
    repository = str(name)
    import huggingface_hub  # slow to import, and most models are local

    try:
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=_FILES))
    except huggingface_hub.errors.GatedRepoError as error:
        raise FileNotFoundError(
            f"{repository} is gated on the Hugging Face Hub: accept its terms there, then log in "
            "with `hf auth login`"
        ) from error
    except huggingface_hub.errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"there is no directory {repository} here, and no such repository that you may read "
            "on the Hugging Face Hub"
        ) from error
    # The library raises many kinds of errors without a connection, some from its transport.
    except Exception as error:
        raise FileNotFoundError(
            f"there is no directory {repository} here, it is not in the Hugging Face cache, and "
            f"the Hub cannot be reached ({type(error).__name__}): download it where there is a "
            "connection, and give its directory"
        ) from error


def model_name(path: Path) -> str:
    """Returns the name of the model in a directory: its repository, or the directory's name."""
    for part in path.parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return path.resolve().name
