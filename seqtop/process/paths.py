"""Paths of seqtop's own files: the XDG base directories, or their defaults in the home directory.

platformdirs would put them elsewhere on macOS, where terminal programs use `~/.config` too.
"""

import os
from pathlib import Path


def config_file() -> Path:
    """Returns the path of the user's configuration: ``$XDG_CONFIG_HOME/seqtop/config.toml``."""
    return _base("XDG_CONFIG_HOME", ".config") / "config.toml"


def bind_file() -> Path:
    """Returns the path of the file with engines' endpoint: ``$XDG_CONFIG_HOME/seqtop/bind``."""
    return config_file().with_name("bind")


def state_file() -> Path:
    """Returns the path of the app's saved state: ``$XDG_STATE_HOME/seqtop/state.json``."""
    return _base("XDG_STATE_HOME", ".local/state") / "state.json"


def _base(variable: str, default: str) -> Path:
    # The XDG specification says that a relative path is ignored.
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else _home() / default) / "seqtop"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a container's user may have neither $HOME nor an entry in /etc/passwd
        return Path("/nonexistent")
