"""Where a model is: a directory here, or a repository on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
# Not "consolidated.safetensors", which some repositories hold as a second copy.
_FILES = ["*.json", "*.jinja", "model*.safetensors"]


def find_model(name: str | Path) -> Path:
    """The directory of a model, downloaded into the Hub's cache if need be.

    Args:
        name: A directory, or ``organisation/name`` on the Hub.

    Raises:
        FileNotFoundError: It is neither, or the Hub cannot be reached and the cache lacks it.
    """
    path = Path(name)
    if path.is_dir():
        return path
    repository = str(name)
    if not _REPOSITORY.fullmatch(repository):
        raise FileNotFoundError(f"there is no model directory {name}")
    import huggingface_hub  # takes a moment, and most models are here

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
    # The library tells of a missing connection in many ways, some of them its transport's.
    except Exception as error:
        raise FileNotFoundError(
            f"there is no directory {repository} here, it is not in the Hugging Face cache, and "
            f"the Hub cannot be reached ({type(error).__name__}): download it where there is a "
            "connection, and give its directory"
        ) from error


def model_name(path: Path) -> str:
    """What to call the model in a directory: its repository on the Hub, or the directory."""
    for part in path.parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return path.resolve().name
