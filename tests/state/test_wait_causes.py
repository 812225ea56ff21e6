"""The words for causes of waiting."""

import msgspec
import pytest

from seqtop.state.wait_causes import (
    BEHIND,
    CAUSES,
    cause_in_words,
    describe_limit,
    describe_reason,
    head_reason,
)
from seqtop.wire.messages import EngineInfo, WaitCause, WaitReason
from tests.support.events import engine_info, wait_reason

INFO = engine_info(max_num_seqs=64, max_num_batched_tokens=2_048, max_loras=4)


def reason(cause: WaitCause, num_missing: int = 0) -> WaitReason:
    return wait_reason("a", cause, num_missing)


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_names_a_setting_of_the_engine(name: WaitCause) -> None:
    cause = CAUSES[name]
    fields = {field.name for field in msgspec.structs.fields(EngineInfo)}
    assert cause.setting in {"", *fields}
    assert "{" not in cause.limited(None)
    assert "{" not in cause.limited(INFO)


def test_words_distinguish_causes() -> None:
    words = [cause.word for cause in CAUSES.values()]
    assert len({*words, BEHIND}) == len(words) + 1
    assert all(len(word) <= 7 and " " not in word for word in words)


@pytest.mark.parametrize(
    ("expected", "cause", "num_missing"),
    [
        ("the step's token budget (2,048) is used up; 88 more tokens needed", "token_budget", 88),
        ("the step's token budget (2,048) is used up; 1 more token needed", "token_budget", 1),
        ("the step's token budget (2,048) is used up", "token_budget", 0),
        ("the step's token budget (2,048) is used up", "token_budget", -1),
        ("max_num_seqs (64) sequences are running", "seq_limit", 0),
        ("max_loras (4) other LoRA adapters are in use", "lora_slots", 7),
        ("too few blocks are free; 1,234 more blocks needed", "no_blocks", 1_234),
    ],
)
def test_a_reason_has_the_limit_and_what_is_missing(
    expected: str, cause: WaitCause, num_missing: int
) -> None:
    assert describe_reason(reason(cause, num_missing), INFO) == expected


def test_a_limit_that_is_not_known_is_left_out() -> None:
    assert describe_reason(reason("seq_limit"), None) == "max_num_seqs sequences are running"
    without_lora = engine_info(max_loras=None)
    assert describe_limit(reason("lora_slots"), without_lora) == "max_loras"


def test_an_engine_may_have_names_of_its_own() -> None:
    assert cause_in_words("no_blocks") is CAUSES["no_blocks"]
    assert "grammar" in cause_in_words("WAITING_FOR_FSM").sentence
    own = cause_in_words("FROZEN{limit}")
    assert (own.word, own.label) == ("frozen{limit}", "FROZEN{limit}")
    assert not own.is_for_turn


def test_requests_that_are_passed_over_are_not_the_head_of_the_queue() -> None:
    reasons = [reason("lora_slots"), reason("unknown"), reason("no_blocks"), reason("paused")]
    assert head_reason(reasons) is reasons[2]
    assert head_reason(reasons[:2]) is None
