"""Where seqtop keeps its files: the XDG base directories, or their defaults under the home."""

import os
from pathlib import Path


def config_file() -> Path:
    """What users write: ``$XDG_CONFIG_HOME/seqtop/config.toml``."""
    return _base("XDG_CONFIG_HOME", ".config") / "config.toml"


def memory_file() -> Path:
    """What the app remembers by itself: ``$XDG_STATE_HOME/seqtop/remembered.json``."""
    return _base("XDG_STATE_HOME", ".local/state") / "remembered.json"


def _base(variable: str, default: str) -> Path:
    # The specification has a relative path ignored.
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path.home() / default) / "seqtop"
