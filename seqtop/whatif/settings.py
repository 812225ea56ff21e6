"""Changes of settings, as `--set` names them."""

from __future__ import annotations

import re
from typing import Final

from seqtop.wire.messages import EngineInfo, Setting

_INFO_SETTINGS: Final = (
    "block_size",
    "num_gpu_blocks",
    "num_cpu_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "preemption_mode",
)
"""Settings that are fields of `EngineInfo`."""

_REFUSED: Final = {
    "num_speculative_tokens": "the recording does not say which other drafts would be accepted",
    "pipeline_parallel_size": "the times of other stages are not known",
    "seed": "the recorded tokens are those of the recorded seed",
    "speculative": "the recording does not say which other drafts would be accepted",
}
"""Settings that cannot be changed, with the reasons."""

_PERCENT: Final = re.compile(r"([+-]\d+(?:\.\d+)?)%")
_BOOLEANS: Final = {"true": True, "on": True, "false": False, "off": False}


class SettingError(Exception):
    """A change cannot be made; the message is one sentence for the user."""


def recorded_settings(info: EngineInfo) -> dict[str, Setting]:
    """Returns the settings that can be changed, with their recorded values."""
    settings: dict[str, Setting] = {name: getattr(info, name) for name in _INFO_SETTINGS}
    settings |= info.scheduler_settings
    return {name: value for name, value in settings.items() if name not in _REFUSED}


def parse_change(text: str, info: EngineInfo) -> tuple[str, Setting]:
    """Parses a change, such as `num_gpu_blocks=+20%`; returns the setting and its new value.

    Raises:
        SettingError: There is no such setting, it cannot be changed, or not to this value.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise SettingError(f"{text!r} is no change; write NAME=VALUE, such as max_num_seqs=64")
    if name in _REFUSED:
        raise SettingError(f"{name} cannot be changed: {_REFUSED[name]}")
    settings = recorded_settings(info)
    if name not in settings:
        raise SettingError(f"no setting {name!r}: there are {', '.join(sorted(settings))}")
    return name, _parse_value(name, value, settings[name])


def _parse_value(name: str, value: str, recorded: Setting) -> Setting:
    if isinstance(recorded, bool):
        if value.lower() not in _BOOLEANS:
            raise SettingError(f"{name} is true or false, not {value!r}")
        return _BOOLEANS[value.lower()]
    if isinstance(recorded, str):
        return value
    if match := _PERCENT.fullmatch(value):
        if not recorded:
            raise SettingError(f"{name} has no recorded value that {value} could refer to")
        changed = recorded * (1 + float(match[1]) / 100)
        return round(changed) if isinstance(recorded, int) else changed
    try:
        return float(value) if isinstance(recorded, float) else int(value)
    except ValueError:
        raise SettingError(f"{name} is a number or a change such as +20%, not {value!r}") from None
