"""Changes of settings, as `--set` names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, TypeGuard

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

POLICY: Final = "scheduling_policy"
"""The setting whose value is the file of a policy of the bundled scheduler."""

_REFUSED: Final = {
    "num_speculative_tokens": "the recording does not say which other drafts would be accepted",
    "pipeline_parallel_size": "the times of other stages are not known",
    POLICY: "--policy gives its file",
    "seed": "the recorded tokens are those of the recorded seed",
    "speculative": "the recording does not say which other drafts would be accepted",
}
"""Settings that cannot be changed, with the reasons."""

_PERCENT: Final = re.compile(r"([+-]\d+(?:\.\d+)?)%")
_RANGE: Final = re.compile(r"(.+?)\.\.(.+):(\d{1,4})")
MAX_SWEEP: Final = 100
"""The most values of a range, and combinations of values."""
_BOOLEANS: Final = {"true": True, "on": True, "false": False, "off": False}


class SettingError(Exception):
    """A change cannot be made; the message is one sentence for the user."""


def recorded_settings(info: EngineInfo) -> dict[str, Setting]:
    """Returns the settings that can be changed, with their recorded values."""
    settings: dict[str, Setting] = {name: getattr(info, name) for name in _INFO_SETTINGS}
    settings |= info.scheduler_settings
    return {name: value for name, value in settings.items() if name not in _REFUSED}


def policy_change(path: str, info: EngineInfo) -> dict[str, Setting]:
    """Returns the change to a scheduling policy in a Python file.

    Raises:
        SettingError: It is not the bundled engine, or there is no such file.
    """
    if not info.engine.startswith("engine_stub"):
        raise SettingError("a policy is for the scheduler of the bundled engine")
    if not Path(path).is_file():
        raise SettingError(f"there is no policy {path}")
    return {POLICY: str(Path(path).resolve())}


def recorded_policy(info: EngineInfo, path: str | None) -> dict[str, Setting]:
    """Returns the setting by which a run with a policy of one's own is repeated.

    Args:
        info: The recorded engine.
        path: A file of a policy; it is used if the recorded policy has its name.
    """
    name = info.scheduler_settings.get(POLICY)
    is_own = name is not None and path is not None and Path(path).stem == name
    return {POLICY: str(Path(path).resolve())} if is_own and path is not None else {}


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


def parse_sweep(text: str, info: EngineInfo) -> tuple[str, list[Setting]]:
    """Parses values of one setting: `num_gpu_blocks=500..2000:8` or `max_num_seqs=8,16,32`.

    Of a range, as many values as the number after the colon says, in equal distances.

    Raises:
        SettingError: There is no such setting, it cannot be changed, or not to these values.
    """
    name, _, values = text.partition("=")
    match = _RANGE.fullmatch(values.strip())
    if match is None:
        parsed = [parse_change(f"{name}={value}", info) for value in values.split(",")]
        return parsed[0][0], list(dict.fromkeys(value for _, value in parsed))
    (name, first), (_, last) = (parse_change(f"{name}={match[i]}", info) for i in (1, 2))
    count = int(match[3])
    if not _is_number(first) or not _is_number(last):
        raise SettingError(f"{name} has no range of values; separate them by commas")
    if not 2 <= count <= MAX_SWEEP:
        raise SettingError(f"a range has 2 to {MAX_SWEEP} values, not {count:,}")
    numbers = [first + (last - first) * index / (count - 1) for index in range(count)]
    if isinstance(first, int):
        return name, list(dict.fromkeys(map(round, numbers)))
    return name, list(dict.fromkeys(numbers))


def _is_number(value: Setting) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
