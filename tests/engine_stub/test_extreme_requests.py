"""No accepted request ends the engine, blocks others for ever, or keeps blocks, however extreme."""

import random
from typing import Any, get_args

import pytest

from engine_stub.config import PreemptionVictim
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.processing.input_processor import Params
from seqtop.sequence import PoolingParams, SamplingParams
from seqtop.wire.messages import PreemptionMode
from tests.support.running import MakeEngine

NUM_SEEDS = 16
MOST_STEPS = 3_000
LARGE = 2**31 - 1


def extreme_settings(choose: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "block_size": choose.choice([1, 2, 4, 16]),
        "num_gpu_blocks": choose.randint(2, 60),
        "max_num_seqs": choose.randint(1, 8),
        "max_num_batched_tokens": choose.choice([8, 16, 33, 300]),
        "enable_prefix_caching": choose.choice([True, False]),
        "preemption_mode": choose.choice(get_args(PreemptionMode)),
        "num_cpu_blocks": choose.choice([0, 3, 40]),
        "preemption_victim": choose.choice(get_args(PreemptionVictim)),
    }
    steps: dict[str, Any] = {"num_scheduler_steps": choose.randint(2, 9)}
    drafts: dict[str, Any] = {
        "speculative": "ngram",
        "num_speculative_tokens": choose.randint(1, 6),
    }
    return settings | choose.choice([{}, steps, drafts])


def extreme_params(choose: random.Random) -> Params:
    """Returns parameters at the ends of their ranges, some of which are refused together."""
    pick = choose.choice
    match choose.randrange(8):
        case 0:
            return PoolingParams(dimensions=pick([None, 1, 64]))
        case 1:
            return BeamSearchParams(
                beam_width=choose.randint(1, 9),
                max_tokens=pick([1, 5, LARGE]),
                temperature=pick([0, 1e-300, 1e300]),
                length_penalty=pick([-10, 10]),
                early_stopping=pick([True, False, "never"]),
                ignore_eos=pick([True, False]),
            )
    return SamplingParams(
        n=pick([1, 1, 1, 5]),
        temperature=pick([0, 1e-12, 1_000]),
        top_k=pick([-1, 0, 1, LARGE]),
        top_p=pick([1e-300, 1.0]),
        min_p=pick([0, 1]),
        seed=pick([None, -(2**63), 2**63 - 129]),
        max_tokens=pick([None, 1, 40, LARGE]),
        min_tokens=pick([0, 1]),
        presence_penalty=pick([-2, 2]),
        repetition_penalty=pick([0.01, 1, 100]),
        logprobs=pick([None, 0, 1_000]),
        prompt_logprobs=pick([None, 1_000]),
        logit_bias=pick([None, {0: -100.0, 256: 100.0}]),
        allowed_token_ids=pick([None, None, [1, 1]]),
        stop_token_ids=pick([None, list(range(257))]),
        stop=pick([None, ["a", "b" * 99]]),
        ignore_eos=pick([True, False]),
        truncate_prompt_tokens=pick([None, 1, LARGE]),
    )


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_the_engine_goes_on_to_the_end(make_engine: MakeEngine, seed: int) -> None:
    choose = random.Random(seed)
    engine = make_engine(**extreme_settings(choose))
    num_accepted = 0
    while num_accepted < 6:
        prompt = [choose.randrange(257) for _ in range(choose.choice([1, 30, 60, 300]))]
        priority = choose.choice([0, -(2**63), 2**64])
        try:
            engine.add_request(
                f"r{num_accepted}", prompt, extreme_params(choose), priority=priority
            )
        except ValueError:
            continue
        num_accepted += 1
    for _ in range(MOST_STEPS):
        if not engine.has_unfinished_requests():
            break
        assert not engine.step().errors
    assert not engine.has_unfinished_requests()
    assert engine.block_manager.stats.used == 0
