"""Changes of settings, as the command line names them."""

from pathlib import Path

import pytest

from seqtop.whatif.settings import (
    POLICY,
    SettingError,
    parse_change,
    parse_sweep,
    policy_change,
    recorded_policy,
    recorded_settings,
)
from tests.support.events import engine_info

INFO = engine_info(
    num_gpu_blocks=500,
    num_cpu_blocks=None,
    scheduler_settings={"preemption_victim": "last", "seed": 1, "watermark": 0.5},
)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("num_gpu_blocks=600", "num_gpu_blocks", 600),
        ("num_gpu_blocks=+20%", "num_gpu_blocks", 600),
        ("num_gpu_blocks=-12.5%", "num_gpu_blocks", 438),
        (" max_num_seqs = 4 ", "max_num_seqs", 4),
        ("num_cpu_blocks=8", "num_cpu_blocks", 8),
        ("enable_prefix_caching=false", "enable_prefix_caching", False),
        ("enable_chunked_prefill=On", "enable_chunked_prefill", True),
        ("preemption_victim=largest", "preemption_victim", "largest"),
        ("watermark=+100%", "watermark", 1.0),
        ("watermark=0.25", "watermark", 0.25),
    ],
)
def test_a_change_is_parsed(text: str, name: str, value: object) -> None:
    parsed_name, parsed = parse_change(text, INFO)
    assert (parsed_name, parsed, type(parsed)) == (name, value, type(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("num_gpu_blocks", "is no change; write NAME=VALUE"),
        ("num_gpu_blocks=", "is no change"),
        ("blocks=5", "no setting 'blocks': there are block_size, "),
        ("engine_id=x", "no setting 'engine_id'"),
        ("seed=3", "seed cannot be changed: the recorded tokens are those of the recorded seed"),
        ("speculative=ngram", "speculative cannot be changed"),
        ("num_gpu_blocks=many", "is a number or a change such as +20%, not 'many'"),
        ("num_gpu_blocks=1.5", "is a number"),
        ("num_cpu_blocks=+20%", "has no recorded value that +20% could refer to"),
        ("enable_prefix_caching=1", "is true or false, not '1'"),
    ],
)
def test_a_change_that_cannot_be_made_is_named(text: str, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_change(text, INFO)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("max_num_seqs=8,16,8", "max_num_seqs", [8, 16]),
        ("max_num_seqs= 4 ", "max_num_seqs", [4]),
        ("num_gpu_blocks=500..600:3", "num_gpu_blocks", [500, 550, 600]),
        (" num_gpu_blocks = 500..-20%:2", "num_gpu_blocks", [500, 400]),
        ("max_num_seqs=1..2:4", "max_num_seqs", [1, 2]),
        ("watermark=0.5..1.0:3", "watermark", [0.5, 0.75, 1.0]),
        ("watermark=0.5..0.5:2", "watermark", [0.5]),
        ("enable_prefix_caching=on,off", "enable_prefix_caching", [True, False]),
    ],
)
def test_values_of_one_setting_are_parsed(text: str, name: str, values: list[object]) -> None:
    assert parse_sweep(text, INFO) == (name, values)


def test_a_range_has_at_most_a_hundred_values() -> None:
    assert parse_sweep("num_gpu_blocks=1..100:100", INFO)[1] == [*range(1, 101)]
    for count in (0, 1, 101, 9999):
        with pytest.raises(SettingError, match=f"has 2 to 100 values, not {count:,}"):
            parse_sweep(f"num_gpu_blocks=1..100:{count}", INFO)
    for values in ("last..largest:3", "last..largest:1"):
        with pytest.raises(SettingError, match="preemption_victim has no range of values"):
            parse_sweep(f"preemption_victim={values}", INFO)
    with pytest.raises(SettingError, match="enable_prefix_caching has no range of values"):
        parse_sweep("enable_prefix_caching=off..on:2", INFO)


def test_a_policy_is_a_file_for_the_bundled_engine(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    bundled = engine_info(engine="engine_stub 1", scheduler_settings={POLICY: "mine", "seed": 1})
    with pytest.raises(SettingError, match="there is no policy"):
        policy_change(str(path), bundled)
    path.touch()
    assert policy_change(str(path), bundled) == {POLICY: str(path)}
    with pytest.raises(SettingError, match="is for the scheduler of the bundled engine"):
        policy_change(str(path), INFO)
    assert recorded_policy(bundled, str(path)) == {POLICY: str(path)}
    other = str(tmp_path / "other.py")
    assert recorded_policy(bundled, None) == recorded_policy(bundled, other) == {}
    assert recorded_policy(INFO, None) == recorded_policy(INFO, str(path)) == {}
    assert {POLICY, "seed"}.isdisjoint(recorded_settings(bundled))
