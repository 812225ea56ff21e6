"""Processes requests: tokenizes prompts, completes parameters, refuses unsupported ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams, is_beam_search
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.sequence import PoolingParams, SamplingParams, TokenInputs
from seqtop.sequence.errors import ParameterError

Prompt: TypeAlias = str | list[int] | TokenInputs
"""A prompt as text, as token ids, or as token ids with their text."""

Params: TypeAlias = SamplingParams | BeamSearchParams | PoolingParams
"""The parameters of a request: for samples, a beam search, or an embedding of the prompt."""

MAX_SAMPLES = 128
"""The largest `n`, as in OpenAI's API."""

# Sampling parameters that are refused rather than ignored.
_UNSUPPORTED_PARAMS = ("logits_processors", "guided_decoding", "bad_words")

# Requests arrive over HTTP and from viewers: these limits are the ones that hold for both.
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 100),
    "temperature": (0, 1_000),
    "top_p": (0, 1),
    "min_p": (0, 1),
}
# Scheduling counts with some of these: another kind of number would fail the whole step.
_INTEGER_RANGES: Final[dict[str, tuple[int, int]]] = {
    "n": (1, MAX_SAMPLES),
    "top_k": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1 - MAX_SAMPLES),
    "max_tokens": (1, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, 1_000),
    "prompt_logprobs": (0, 1_000),
    "truncate_prompt_tokens": (1, 2**31 - 1),
}
_BIAS_RANGE: Final = (-100, 100)
_MAX_STOPS: Final = 64
_MAX_STOP_LENGTH: Final = 10_000


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    """A validated request.

    Attributes:
        prompt: The text, if known.
        params: A copy of the parameters, with every token at which this model stops.
    """

    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams | PoolingParams


class InputProcessor:
    """Validates and tokenizes requests.

    Args:
        config: The engine's settings, all of them resolved.
        model_config: The shape of the model.
        tokenizer: The model's tokenizer.
    """

    def __init__(
        self, config: EngineConfig, model_config: ModelConfig, tokenizer: Tokenizer
    ) -> None:
        assert config.max_model_len is not None
        self._config = config
        self._model_config = model_config
        self._max_model_len = config.max_model_len
        self._tokenizer = tokenizer

    def process(self, prompt: Prompt, params: Params) -> ProcessedInput:
        """Processes a request.

        Raises:
            ValueError: The prompt is empty or holds unknown tokens, or the engine does not support
                the parameters.
        """
        if isinstance(prompt, str) and not getattr(params, "truncate_prompt_tokens", None):
            self._check_length(prompt)
        text, token_ids = self._read(prompt)
        if isinstance(params, PoolingParams):
            self._validate_tokens(token_ids)
            self._validate_pooling(params)
            return ProcessedInput(text, token_ids, params.clone())
        if isinstance(params, BeamSearchParams):
            self._validate_beams(token_ids, params)
            params = params.as_sampling_params()
        elif is_beam_search(params):
            raise ParameterError(
                "extra_args", "extra_args cannot ask for a beam search; use BeamSearchParams"
            )
        elif params.extra_args:
            raise ParameterError("extra_args", "extra_args is not supported by this engine")
        if params.truncate_prompt_tokens is not None:
            token_ids = token_ids[-params.truncate_prompt_tokens :]
        self._validate(token_ids, params)
        return ProcessedInput(text, token_ids, self._with_stop_tokens(params))

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Returns a prompt's text, if known, and its tokens."""
        if isinstance(prompt, str):
            return prompt, self._tokenizer.encode(prompt)
        if isinstance(prompt, list):
            return None, list(prompt)
        return prompt.get("prompt"), list(prompt["prompt_token_ids"])

    def _check_length(self, text: str) -> None:
        """Raises ValueError for a text that is too long in any case, before it takes time."""
        if self._tokenizer.least_tokens(text) > self._max_model_len:
            raise ValueError(
                f"the prompt has {len(text):,} characters, and this engine takes at most"
                f" {self._max_model_len:,} tokens"
            )

    def _validate(self, token_ids: list[int], params: SamplingParams) -> None:
        """Raises ValueError for a request that the engine cannot run."""
        self._validate_tokens(token_ids)
        for name, limits in (_RANGES | _INTEGER_RANGES).items():
            _check_range(name, getattr(params, name), limits)
        for name in _INTEGER_RANGES:
            if isinstance(value := getattr(params, name), float):
                raise ParameterError(name, f"{name} must be an integer, got {value}")
        for bias in (params.logit_bias or {}).values():
            _check_range("logit_bias", bias, _BIAS_RANGE)
        texts = params.stop or ()
        if len(texts) > _MAX_STOPS or sum(map(len, texts)) > _MAX_STOP_LENGTH:
            raise ParameterError(
                "stop",
                f"stop must have at most {_MAX_STOPS} strings and {_MAX_STOP_LENGTH} characters",
            )
        for name, ids in (
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("logit_bias", params.logit_bias or ()),
            ("stop_token_ids", params.stop_token_ids or ()),
        ):
            self._validate_known(name, ids)
        if params.allowed_token_ids is not None:
            stops = params.all_stop_token_ids.union(self._model_config.eos_token_id)
            usable = set(params.allowed_token_ids).difference(stops if params.min_tokens else ())
            if not usable:
                raise ParameterError(
                    "allowed_token_ids", "allowed_token_ids leaves no token to sample"
                )
        for name in _UNSUPPORTED_PARAMS:
            if getattr(params, name) not in (None, []):
                raise ParameterError(name, f"{name} is not supported by this engine")

    def _validate_tokens(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise ParameterError("prompt", "the prompt holds no tokens")
        self._validate_known("prompt", token_ids)

    def _validate_known(self, name: str, token_ids: Iterable[int]) -> None:
        vocab_size = self._model_config.vocab_size
        if unknown := [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]:
            owner = "the prompt" if name == "prompt" else name
            raise ParameterError(
                name, f"{owner} holds token {unknown[0]}, outside the vocabulary of {vocab_size}"
            )

    def _validate_pooling(self, params: PoolingParams) -> None:
        size = self._model_config.hidden_size
        if params.dimensions is not None and not 1 <= params.dimensions <= size:
            raise ParameterError(
                "dimensions", f"dimensions must be from 1 to {size}, got {params.dimensions}"
            )
        if params.use_cross_encoder or params.additional_data is not None:
            raise ValueError("this engine pools prompts to embeddings only")

    def _validate_beams(self, token_ids: list[int], params: BeamSearchParams) -> None:
        """Raises ValueError for a search whose beams could not all run at once."""
        config, width = self._config, params.beam_width
        if width > config.max_num_seqs:
            raise ParameterError(
                "beam_width",
                f"beam_width={width} is more than the {config.max_num_seqs} sequences that may run",
            )
        longest = min(len(token_ids) + params.max_tokens, self._max_model_len)
        num_shared = len(token_ids) // config.block_size
        num_blocks = num_shared + width * (-(-longest // config.block_size) - num_shared)
        assert config.num_gpu_blocks is not None
        if num_blocks > config.num_gpu_blocks:
            raise ValueError(
                f"{width} beams of {longest} tokens take up to {num_blocks} blocks, and the pool"
                f" has {config.num_gpu_blocks}; ask for fewer beams or tokens"
            )
        if not config.enable_chunked_prefill and width * longest > config.max_num_batched_tokens:
            raise ValueError(
                f"{width} beams of {longest} tokens are more than the"
                f" {config.max_num_batched_tokens} that a step could compute again, and chunked"
                " prefill is off; ask for fewer beams or tokens"
            )

    def _with_stop_tokens(self, params: SamplingParams) -> SamplingParams:
        """Returns a copy of `params` with every token at which this model stops."""
        params = params.clone()
        params.all_stop_token_ids.update(self._model_config.eos_token_id)
        if not params.ignore_eos:
            # A sequence has one end-of-sequence token; the others become stop tokens.
            others = self._model_config.eos_token_id[1:]
            params.stop_token_ids = [*(params.stop_token_ids or ()), *others]
        return params


def _check_range(name: str, value: Any, limits: tuple[float, float]) -> None:
    """Raises ValueError for a number outside the limits, or that is not a number."""
    lowest, highest = limits
    if value is not None and not lowest <= value <= highest:  # also of NaN
        raise ParameterError(name, f"{name} must be from {lowest} to {highest}, got {value}")
