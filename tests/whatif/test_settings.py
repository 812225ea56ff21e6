"""Changes of settings, as the command line names them."""

import pytest

from seqtop.whatif.settings import SettingError, parse_change
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
