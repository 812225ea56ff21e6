"""The end of output: its position, status and reason."""

import itertools
from typing import Any

import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.scheduler import Scheduler
from engine_stub.engine import LLMEngine
from engine_stub.processing.detokenizer import Detokenizer
from engine_stub.processing.output_processor import OutputProcessor
from seqtop.sequence import (
    Logprob,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceOutput,
    SequenceStatus,
    token_inputs,
)
from tests.support.byte_strings import ByteStrings
from tests.support.checkpoints import byte_level_tokenizer
from tests.support.running import MakeEngine

PROMPT = [40, 50, 60, 70]
TEXT = "One two, née THREE. 😀 done"
NUM_BYTES = len(TEXT.encode())
COMMA = byte_level_tokenizer().token_to_id(",")
KEPT = {"include_stop_str_in_output": True}
STOPPED, CAPPED = SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_LENGTH_CAPPED


def run(engine: LLMEngine, **params: Any) -> tuple[Sequence, list[str]]:
    """The sequence at its end, and the text deltas that steps reported."""
    defaults: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    (group,) = engine.add_request("r", PROMPT, SamplingParams(**(defaults | params)))
    text_deltas = []
    while engine.has_unfinished_requests():
        text_deltas += [update.text_delta for update in engine.step().updates]
    assert "".join(text_deltas) == group.first_seq.output_text
    return group.first_seq, text_deltas


@pytest.fixture
def steered(make_engine: MakeEngine) -> LLMEngine:
    """An engine whose greedy output is the text below: its bytes as tokens, then the end."""
    engine = make_engine()
    script = [*engine.tokenizer.encode(TEXT), 0]
    sampler = engine.worker.model_runner.sampler
    choose = sampler._choose

    def steer(logits: torch.Tensor, requests: list[Any]) -> Any:
        for row, request in enumerate(requests):
            logits[row, script[request.data.get_output_len()]] += 1e4
        return choose(logits, requests)

    sampler._choose = steer
    return engine


@pytest.mark.parametrize(
    ("params", "status", "reason", "text", "num_tokens"),
    [
        ({"max_tokens": 5}, CAPPED, None, "One t", 5),
        ({}, STOPPED, None, TEXT, NUM_BYTES + 1),
        ({"ignore_eos": True, "max_tokens": NUM_BYTES + 1}, CAPPED, None, TEXT, NUM_BYTES + 1),
        ({"detokenize": False, "max_tokens": 6}, CAPPED, None, "", 6),
        ({"detokenize": False}, STOPPED, None, "", NUM_BYTES + 1),
        ({"skip_special_tokens": False} | KEPT, STOPPED, None, TEXT + "<eos>", NUM_BYTES + 1),
        ({"stop_token_ids": [COMMA]}, STOPPED, COMMA, "One two", 8),
        ({"stop_token_ids": [COMMA]} | KEPT, STOPPED, COMMA, "One two,", 8),
        ({"stop": "two"} | KEPT, STOPPED, "two", "One two", 7),
        ({"stop": ["THREE", "née"]}, STOPPED, "née", "One two, ", 13),
        ({"stop": "😀"}, STOPPED, "😀", "One two, née THREE. ", NUM_BYTES - 5),
        # Of two, the one that begins first.
        ({"stop": ["wo", "two"]}, STOPPED, "two", "One ", 7),
    ],
    ids=str,
)
def test_output_ends(
    steered: LLMEngine,
    params: dict[str, Any],
    status: SequenceStatus,
    reason: str | int | None,
    text: str,
    num_tokens: int,
) -> None:
    seq, _ = run(steered, **{"max_tokens": 100} | params)
    assert (seq.status, seq.stop_reason, seq.output_text) == (status, reason, text)
    assert seq.get_output_len() == num_tokens
    if status is STOPPED and not isinstance(reason, str):
        assert seq.get_last_token_id() == (reason or 0)


def test_max_model_len(make_engine: MakeEngine) -> None:
    seq, _ = run(make_engine(max_model_len=12), max_tokens=None, ignore_eos=True)
    assert (seq.status, seq.get_len()) == (CAPPED, 12)


def test_stop_string(steered: LLMEngine) -> None:
    seq, text_deltas = run(steered, stop="two, n")
    assert (seq.status, seq.stop_reason, seq.output_text) == (STOPPED, "two, n", "One ")
    # What might have been the start of it was never shown.
    assert text_deltas[-1] == ""


def test_half_a_character_after_a_stop_string_is_dropped_with_the_rest() -> None:
    tokenizer: Any = ByteStrings([b"Hi", b" all, stop \xf0"])
    detokenizer = Detokenizer(tokenizer)
    seq = Sequence(0, token_inputs([0]), 16)
    params = SamplingParams(stop=", stop")
    group = SequenceGroup("r", [seq], 0.0, sampling_params=params)
    sample = SequenceOutput(0, 1, {1: Logprob(-1.0)})
    manager = BlockManager(1, 16, enable_prefix_caching=False)
    scheduler = Scheduler(EngineConfig(num_gpu_blocks=1), manager)
    processor = OutputProcessor(detokenizer, 100, scheduler, itertools.count())
    update = processor._append(group, seq, [sample])
    assert seq.stop_reason == ", stop"
    assert update.text_delta == seq.output_text == " all"


def test_text_held_back_for_a_stop_string_comes_at_the_end(steered: LLMEngine) -> None:
    seq, text_deltas = run(steered, stop="two times", max_tokens=7)
    assert (seq.status, seq.output_text) == (CAPPED, "One two")
    assert text_deltas == ["", "", "", "", "", "", "One two"]


def test_text_held_back_for_a_stop_string_is_dropped_at_an_abort(steered: LLMEngine) -> None:
    """The text is what the deltas contain: no client gets more of it."""
    params = SamplingParams(temperature=0, stop=["two times"], max_tokens=24)
    (group,) = steered.add_request("r", PROMPT, params)
    text_deltas = [update.text_delta for _ in range(11) for update in steered.step().updates]
    assert group.first_seq.output_text == "One two, n"
    steered.abort_request("r")
    assert "".join(text_deltas) == group.first_seq.output_text == "On"


def test_half_a_character_at_max_tokens(steered: LLMEngine) -> None:
    num_bytes = len("One two, née THREE. ".encode()) + 2
    seq, text_deltas = run(steered, max_tokens=num_bytes)
    assert seq.output_text == "One two, née THREE. \ufffd"
    assert text_deltas[-2:] == ["", "\ufffd"]


def test_nothing_stops_before_min_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine()
    alone, _ = run(engine, max_tokens=30, ignore_eos=True)
    text = alone.output_text
    assert len(text) > 12
    # The first character comes at once: as a stop string, and as a stop token.
    stopped, _ = run(engine, stop=[text[0]], max_tokens=30)
    assert stopped.get_output_len() <= 4
    held, _ = run(engine, stop=[text[0]], min_tokens=10, max_tokens=30)
    assert held.get_output_len() >= 10
    first = alone.get_output_token_ids()[0]
    held, _ = run(engine, stop_token_ids=[first], min_tokens=10, max_tokens=30)
    assert first not in held.get_output_token_ids()[:10]
    assert held.get_output_len() >= 10
