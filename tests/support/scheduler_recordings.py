"""Ten recordings of the bundled engine that have all kinds of decisions of its scheduler.

No model runs: tokens are made up, so that a recording is the same each time, and quick.
"""

import itertools
import random
from pathlib import Path
from typing import Any, NamedTuple

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.processing.input_processor import Params
from seqtop.history import FileWriter
from seqtop.history.step_time import Size
from seqtop.sequence import PoolingParams, SamplingParams
from seqtop.whatif.replay import Clock, RecordingSink
from seqtop.whatif.workload import Answer, Continuation, RecordedDraft
from tests.support.simulated_model import engine_without_model

_BASE: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 8,
    "num_gpu_blocks": 40,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 160,
}
_SMALL: dict[str, Any] = {"num_gpu_blocks": 22, "max_num_seqs": 6}
"""A pool in which requests are preempted."""
_BEAM_TOKENS = (11, 12, 13)
_MAX_BEAM_LENGTH = 6
_LONG = 2_000
"""The tokens of a prompt that is ignored; shorter ones are cut to what the engine takes."""


class Load(NamedTuple):
    """The settings and the requests of a recording."""

    settings: dict[str, Any]
    kinds: str = "plain"
    """The kinds of requests, of which each is as likely as another: `plain`, `stop`, `whole` for a
    prompt that takes the whole pool, `long` for one that is ignored, `beams`, `samples`, `pooled`,
    `logprobs` for those of the prompt."""
    num_requests: int = 40
    num_priorities: int = 1
    abort: float = 0.0
    """The chance that a request is aborted after an arrival."""
    prompt: tuple[int, int] = (4, 70)
    """The shortest and the longest prompt, apart from a beginning that others have, too."""
    output: tuple[int, int] = (6, 40)
    shared: tuple[int, ...] = (0, 0, 16, 40)
    """Lengths of beginnings."""
    pause: int = 4
    """The most steps between two arrivals."""


LOADS = {
    "arrivals": Load({}, "plain stop long samples", abort=0.1, pause=3),
    "recompute": Load(_SMALL, abort=0.1),
    "priorities": Load(
        {**_SMALL, "preemption_victim": "largest", "enable_prefix_caching": False},
        num_priorities=3,
    ),
    "swapping": Load(
        {
            **_SMALL,
            "preemption_mode": "swap",
            "num_cpu_blocks": 12,
            "max_num_batched_tokens": 12,
        },
        "plain stop",
        num_priorities=2,
        abort=0.3,
        prompt=(4, 40),
        output=(30, 80),
        pause=16,
    ),
    "beams": Load(
        {"num_gpu_blocks": 26, "num_cpu_blocks": 8}, "beams beams plain", prompt=(4, 40), pause=3
    ),
    "lookahead": Load(
        {"num_gpu_blocks": 24, "num_scheduler_steps": 4, "max_num_batched_tokens": 16},
        "plain stop",
        abort=0.05,
        pause=8,
    ),
    "drafts": Load(
        {"num_gpu_blocks": 24, "speculative": "ngram", "num_speculative_tokens": 3}, pause=6
    ),
    "whole_prompts": Load(
        {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 80,
            "max_model_len": 80,
            "num_gpu_blocks": 60,
            "max_num_seqs": 16,
        },
        prompt=(20, 34),
        pause=2,
    ),
    "large_pool": Load(
        {"block_size": 2, "num_gpu_blocks": 320, "max_num_seqs": 16, "max_model_len": 640},
        "plain " * 20 + "whole",
        num_requests=80,
        output=(20, 60),
        pause=3,
    ),
    "no_cache_use": Load(_SMALL, "pooled logprobs plain", shared=(16, 40)),
}
"""The recordings by their names."""


def record_all(folder: Path) -> list[Path]:
    """Records all of them in a folder."""
    paths = []
    for seed, (name, load) in enumerate(LOADS.items()):
        paths.append(folder / f"{name}.seqtop")
        record(paths[-1], load, seed)
    return paths


def record(path: Path, load: Load, seed: int) -> None:
    """Records a run; the same load and seed give the same decisions."""
    draw = random.Random(seed)
    clock = Clock()
    clock.now = 1e9
    beginning = _tokens(draw, max(load.shared))
    requests = [_request(draw, load, f"req-{number}") for number in range(load.num_requests)]
    answers = {name: own for _, _, given in requests for name, own in given.items()}
    engine = engine_without_model(clock, answers, _seconds, **(_BASE | load.settings))
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(engine, engine_id="test", control=False))
        steps = StepPublisher(sink)

        def step() -> None:
            clock.now += 0.0005
            if engine.has_unfinished_requests():
                steps.stepped(engine.step())

        for number, (own, params, _) in enumerate(requests):
            clock.now += 0.0001
            prompt = beginning[: draw.choice(load.shared)] + own
            if len(prompt) < _LONG:
                prompt = prompt[: engine.max_model_len - 2]
            priority = draw.randrange(load.num_priorities)
            for group in engine.add_request(f"req-{number}", prompt, params, priority=priority):
                steps.arrived(group)
            for _ in range(draw.randint(0, load.pause)):
                step()
            if draw.random() < load.abort:
                engine.abort_request(draw.choice([*engine.seq_groups] or [""]))
        while engine.has_unfinished_requests():
            step()


def _seconds(size: Size) -> float:
    return 0.002 + 1e-5 * size.num_prefill_tokens + 1e-4 * size.num_decode_tokens


def _request(
    draw: random.Random, load: Load, name: str
) -> tuple[list[int], Params, dict[str, Answer]]:
    """Returns the own part of a prompt, the parameters, and the answers of the model."""
    kind = draw.choice(load.kinds.split())
    prompt = _tokens(draw, draw.randint(*load.prompt))
    answer = _answer(draw, draw.randint(*load.output))
    length = len(answer.token_ids)
    params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    match kind:
        case "stop":
            params.max_tokens, params.stop_token_ids = 60, [answer.token_ids[-1]]
        case "whole":
            prompt = _tokens(draw, _LONG // 2)
        case "long":
            prompt = _tokens(draw, _LONG)
        case "samples":
            params.n, params.temperature = 2, 1.0
            names = [f"{name}_parallel_sample_{number}" for number in range(2)]
            return prompt, params, {own: _answer(draw, length) for own in names}
        case "logprobs":
            params.prompt_logprobs = 1
        case "pooled":
            return prompt, PoolingParams(), {name: Answer()}
        case "beams":
            beams = BeamSearchParams(
                beam_width=draw.choice((2, 3)), max_tokens=_MAX_BEAM_LENGTH, ignore_eos=True
            )
            return prompt, beams, {name: Answer(beams=_continuations(draw))}
    return prompt, params, {name: answer}


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, 250) for _ in range(count)]


def _answer(draw: random.Random, length: int) -> Answer:
    """Returns an output whose last token is in it once, and drafts of which some are accepted."""
    tokens = [*_tokens(draw, length - 1), 250]
    drafts = {}
    for index in range(length):
        num_tokens = draw.randint(0, 3)
        drafts[index] = RecordedDraft(num_tokens, draw.randint(0, num_tokens))
    return Answer(tokens, [-1.0] * length, drafts=drafts)


def _continuations(draw: random.Random) -> dict[int, list[Continuation]]:
    """Returns continuations for each output that beams may have."""
    return {
        length: [
            Continuation(parent, token, -draw.uniform(0.1, 3.0))
            for parent in itertools.product(_BEAM_TOKENS, repeat=length)
            for token in _BEAM_TOKENS
        ]
        for length in range(_MAX_BEAM_LENGTH)
    }
