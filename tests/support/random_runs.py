"""Random runs of the bundled engine: any settings, requests at any time, aborts."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from engine_stub.config import DEFAULT_MODEL, EngineConfig, PreemptionVictim
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.processing.input_processor import Params
from seqtop.sequence import PoolingParams, SamplingParams, SequenceGroup
from seqtop.whatif.replay import MessageSink
from seqtop.wire.messages import EngineInfo, PreemptionMode
from tests.support.checkpoints import add_draft_head, make_checkpoint

MAX_MODEL_LEN = 96
_PIPELINE_SHARE = 0.01
"""The share of runs over two processes, which take seconds to start."""


class RandomRun:
    """An engine with random limits, which hurt, and the requests that it gets.

    Its clock is random too, and does not depend on the machine's.

    Args:
        seed: The seed of everything.
        models: The models to choose from; each has a draft head.
        is_published: Events go to a `Publisher`, which removes the texts of some engines; others
            run over several processes.
    """

    def __init__(
        self, seed: int, models: Sequence[Path] = (DEFAULT_MODEL,), *, is_published: bool = False
    ) -> None:
        self._rng = random.Random(seed)
        self._now = self._last_arrival = self._step_start = 1_000.0
        self._is_redacted = self._rng.random() < 0.2 and is_published
        num_stages = 1 + (self._rng.random() < _PIPELINE_SHARE and is_published)
        self.engine = LLMEngine(
            EngineConfig(
                model=self._rng.choice(models),
                device="cpu",
                pipeline_parallel_size=num_stages,
                **self._settings(),
            ),
            clock=self._read_clock,
        )
        self.groups: list[SequenceGroup] = []
        self.num_steps = self.num_aborts = 0

    def time(self) -> float:
        """The time of the engine's clock, which stands still between its readings."""
        return self._now

    def info(self) -> EngineInfo:
        """The description of the engine; the caller publishes it first."""
        return engine_info(
            self.engine, engine_id="random", control=False, redacted=self._is_redacted
        )

    def steps(self, publisher: MessageSink) -> Iterator[None]:
        """Publishes all that happens until 4 to 16 requests have ended, and yields at each step."""
        rng, steps = self._rng, StepPublisher(publisher)
        shared = [rng.randrange(1, 257) for _ in range(rng.choice((0, 12, 30)))]
        for number in range(rng.randrange(4, 17)):
            prompt = shared[: rng.randrange(len(shared) + 1)]
            prompt += [rng.randrange(1, 257) for _ in range(rng.choice((2, 18, 40, 70)))]
            # Within the last step, in order.
            self._last_arrival = rng.uniform(max(self._last_arrival, self._step_start), self._now)
            # Beams that could not all run at once are refused.
            with contextlib.suppress(ValueError):
                for group in self.engine.add_request(
                    f"req-{number}",
                    prompt,
                    self._params(),
                    self._last_arrival,
                    priority=rng.randrange(2),
                ):
                    self.groups.append(group)
                    steps.arrived(group)
            for _ in range(rng.randrange(4)):
                self._step(steps)
                yield
            if self.groups and rng.random() < 0.15:
                self.num_aborts += self.engine.abort_request(rng.choice(self.groups).request_id)
        while self.engine.has_unfinished_requests():
            self._step(steps)
            yield

    def _step(self, steps: StepPublisher) -> None:
        record = self.engine.step()
        self.num_steps += 1
        self._step_start = record.start_time
        steps.stepped(record)
        self.engine.block_manager.check()

    def _read_clock(self) -> float:
        self._now += self._rng.expovariate(200.0)
        return self._now

    def _settings(self) -> dict[str, Any]:
        """Limits, policies, and one of the ways to look ahead."""
        rng = self._rng
        max_num_seqs = rng.randint(1, 8)
        max_model_len = rng.choice((MAX_MODEL_LEN // 2, MAX_MODEL_LEN))
        block_size = rng.choice((2, 4, 8, 16))
        chunked = rng.random() < 0.7
        budget = rng.randint(max_num_seqs, 64)
        lookahead: dict[str, Any] = rng.choice(
            (
                {},
                {"num_scheduler_steps": rng.randint(2, 6)},
                {"speculative": "ngram", "num_speculative_tokens": rng.randint(1, 5)},
                {"speculative": "draft-head", "num_speculative_tokens": rng.randint(1, 4)},
            )
        )
        least = max_model_len // block_size
        return {
            "block_size": block_size,
            "num_gpu_blocks": rng.randint(least, 3 * least),
            "num_cpu_blocks": rng.choice((0, 0, 6, 40)),
            "preemption_mode": rng.choice(get_args(PreemptionMode)),
            "preemption_victim": rng.choice(get_args(PreemptionVictim)),
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": budget if chunked else max(budget, max_model_len),
            "max_model_len": max_model_len,
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": rng.random() < 0.7,
            **lookahead,
        }

    def _params(self) -> Params:
        rng = self._rng
        max_tokens = rng.randrange(1, 24)
        match rng.randrange(7):
            case 0:
                return BeamSearchParams(
                    beam_width=rng.randint(1, 3),
                    max_tokens=max_tokens,
                    early_stopping=rng.choice((True, False, "never")),
                )
            case 1:
                return PoolingParams()
            case 2:
                return SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=1)
            case 3:
                seed = rng.randrange(9)
                return SamplingParams(n=rng.randint(2, 3), seed=seed, max_tokens=max_tokens)
            case 4:  # repeats itself, so that drafts stand, and long stop strings occur
                pair = [7, 8]
                tokens = rng.choice(([7] * 8, [8] * 8, pair * 4))
                return SamplingParams(
                    temperature=0,
                    max_tokens=max_tokens,
                    allowed_token_ids=pair,
                    ignore_eos=True,
                    **self._stops(self.engine.tokenizer.decode(tokens)),
                )
            case _:
                earlier = rng.choice(self.groups).first_seq.output_text if self.groups else ""
                return SamplingParams(
                    seed=rng.randrange(9),
                    repetition_penalty=1.2,
                    logprobs=2,
                    max_tokens=max_tokens,
                    **self._stops(earlier),
                )

    def _stops(self, text: str) -> dict[str, Any]:
        """Up to three stop strings of 1 to 8 characters, of `text` if it has so many."""
        rng = self._rng
        stops = []
        for _ in range(rng.choice((0, 1, 1, 3))):
            length = rng.randint(1, 8)
            start = rng.randrange(max(len(text) - length, 0) + 1)
            stops.append(text[start : start + length] or "not so"[:length])
        return {"stop": stops, "include_stop_str_in_output": rng.random() < 0.3}


def small_models(directory: Path) -> list[Path]:
    """Writes models with random weights and draft heads, with and without sliding windows."""
    models = []
    for name in ("llama", "mistral-sliding", "qwen2-sliding"):
        model = make_checkpoint(name, directory / name, hidden_size=32, intermediate_size=48)
        models.append(add_draft_head(model, 32))
    return models
