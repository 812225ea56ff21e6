"""Parameters of a request: sampling, guided decoding, pooling."""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from seqtop.sequence.errors import ParameterError, SequenceError
from seqtop.sequence.privacy import Private, Public, PublicKeys

_GREEDY_BELOW: Final = 1e-5  # temperatures under this one mean greedy sampling
_LOWEST_TEMPERATURE: Final = 1e-2  # lower ones overflow the scaled logits, so they are raised to it


class RequestOutputKind(enum.Enum):
    """The content of each output of a request."""

    CUMULATIVE = 0  # all tokens so far
    DELTA = 1  # new tokens
    FINAL_ONLY = 2  # one output, at the end


class SamplingType(enum.IntEnum):
    """The way in which the sampler draws a token."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


@dataclass
class GuidedDecodingParams:
    """A constraint on the form of the output; at most one of the first five may be given.

    Raises:
        ValueError: Several constraints are given.
    """

    json: str | dict[Any, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    backend: str | None = None
    backend_was_auto: bool = False
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        guides = ("json", "regex", "choice", "grammar", "json_object")
        given = [guide for guide in guides if getattr(self, guide) is not None]
        if len(given) > 1:
            raise ValueError(f"guided decoding takes one constraint, not {', '.join(given)}")


_RULES: Final = (
    ("n", "an integer of at least 1"),
    ("best_of", "at least 1"),
    ("presence_penalty", "from -2 to 2"),
    ("frequency_penalty", "from -2 to 2"),
    ("repetition_penalty", "greater than 0"),
    ("temperature", "at least 0"),
    ("top_p", "greater than 0 and at most 1"),
    ("top_k", "at least 1, or 0 for no limit"),
    ("min_p", "from 0 to 1"),
    ("max_tokens", "at least 1"),
    ("min_tokens", "at least 0"),
    ("min_tokens", "at most max_tokens={max_tokens}"),
    ("logprobs", "at least 0"),
    ("prompt_logprobs", "at least 0"),
    ("truncate_prompt_tokens", "at least 1"),
    ("stop_token_ids", "integers"),
    ("stop", "without empty strings"),
    ("stop", "empty unless detokenize is set"),
    ("best_of", "equal to n for outputs of kind DELTA"),
)
"""The rules for the values of `SamplingParams`, in the order in which they are checked."""


class SamplingParams(msgspec.Struct, omit_defaults=True):
    """Parameters of sampling and stopping; defaults are those of OpenAI's completions.

    Construction normalises the values: `stop`, `stop_token_ids` and `bad_words` become lists;
    `best_of` becomes `n`, and `_real_n` is the number to return; a seed of -1 becomes None; a
    temperature above 0 is raised to at least 0.01; a temperature of 0 means greedy sampling and
    resets `top_p`, `top_k` and `min_p`.

    Raises:
        ValueError: A value is out of range or contradicts another one.
    """

    n: Public[int] = 1
    best_of: Public[int | None] = None
    _real_n: Public[int | None] = None
    presence_penalty: Public[float] = 0.0
    frequency_penalty: Public[float] = 0.0
    repetition_penalty: Public[float] = 1.0
    temperature: Public[float] = 1.0
    top_p: Public[float] = 1.0
    top_k: Public[int] = 0  # 0 or -1: no limit
    min_p: Public[float] = 0.0
    seed: Public[int | None] = None
    stop: Private[str | list[str] | None] = None
    stop_token_ids: Private[list[int] | None] = None
    ignore_eos: Public[bool] = False
    max_tokens: Public[int | None] = 16
    min_tokens: Public[int] = 0
    logprobs: Public[int | None] = None
    prompt_logprobs: Public[int | None] = None
    detokenize: Public[bool] = True
    skip_special_tokens: Public[bool] = True
    spaces_between_special_tokens: Public[bool] = True
    logits_processors: Private[Any | None] = None
    include_stop_str_in_output: Public[bool] = False
    truncate_prompt_tokens: Public[Annotated[int, msgspec.Meta(ge=1)] | None] = None
    output_kind: Public[RequestOutputKind] = RequestOutputKind.CUMULATIVE
    # Characters that the detokenizer holds back, as they may be the start of a stop string.
    output_text_buffer_length: Private[int] = 0
    _all_stop_token_ids: Private[set[int]] = msgspec.field(default_factory=set)
    guided_decoding: Private[GuidedDecodingParams | None] = None
    logit_bias: Private[dict[int, float] | None] = None
    allowed_token_ids: Private[list[int] | None] = None
    # A beam search may have as many sequences as its width, which the rules on waiting need.
    extra_args: Annotated[Private[dict[str, Any] | None], PublicKeys(("beam_width",))] = None
    bad_words: Private[list[str] | None] = None
    _bad_words_token_ids: Private[list[list[int]] | None] = None

    def __post_init__(self) -> None:
        self._normalize_counts()
        self._normalize_lists()
        self._verify()
        if self.temperature < _GREEDY_BELOW:
            self._normalize_greedy()
        self._all_stop_token_ids.update(self.stop_token_ids or ())

    def _normalize_counts(self) -> None:
        if self.best_of:
            if self.best_of < self.n:
                raise ParameterError(
                    "best_of", f"best_of must be at least n={self.n}, got {self.best_of}"
                )
            if not self._real_n:
                self._real_n, self.n = self.n, self.best_of
        if 0 < self.temperature < _LOWEST_TEMPERATURE:
            self.temperature = _LOWEST_TEMPERATURE
        if self.seed == -1:
            self.seed = None
        if self.logprobs is True:
            self.logprobs = 1
        if self.prompt_logprobs is True:
            self.prompt_logprobs = 1

    def _normalize_lists(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        self.stop_token_ids = self.stop_token_ids or []
        self.bad_words = self.bad_words or []
        if self.stop and not self.include_stop_str_in_output:
            self.output_text_buffer_length = max(map(len, self.stop)) - 1

    def _normalize_greedy(self) -> None:
        if self.n > 1:
            raise ParameterError(
                "n", f"greedy sampling gives one output, so n must be 1, got {self.n}"
            )
        self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0

    def _verify(self) -> None:
        # Messages are formatted only on failure, as a joining viewer creates thousands of these.
        valid = (
            isinstance(self.n, int) and self.n >= 1,
            self.best_of is None or self.best_of >= 1,
            -2 <= self.presence_penalty <= 2,
            -2 <= self.frequency_penalty <= 2,
            # Not inverted: vLLM accepts NaN for these two, and its messages must decode.
            not self.repetition_penalty <= 0,
            not self.temperature < 0,
            0 < self.top_p <= 1,
            self.top_k >= -1,
            0 <= self.min_p <= 1,
            self.max_tokens is None or self.max_tokens >= 1,
            self.min_tokens >= 0,
            self.max_tokens is None or self.min_tokens <= self.max_tokens,
            self.logprobs is None or self.logprobs >= 0,
            self.prompt_logprobs is None or self.prompt_logprobs >= 0,
            self.truncate_prompt_tokens is None or self.truncate_prompt_tokens >= 1,
            not self.stop_token_ids
            or all(isinstance(token_id, int) for token_id in self.stop_token_ids),
            not self.stop or all(self.stop),
            not self.stop or self.detokenize,
            self.best_of == self._real_n or self.output_kind is not RequestOutputKind.DELTA,
        )
        if all(valid):
            return
        name, rule = _RULES[valid.index(False)]
        required = rule.format(max_tokens=self.max_tokens)
        # Stop strings and tokens are private, and the error may be published.
        got = "" if name.startswith("stop") else f", got {getattr(self, name)!r}"
        raise ParameterError(name, f"{name} must be {required}{got}")

    @property
    def all_stop_token_ids(self) -> set[int]:
        """All tokens that end the output: requested ones and those added by the engine."""
        return self._all_stop_token_ids

    @property
    def bad_words_token_ids(self) -> list[list[int]] | None:
        """`bad_words` as token ids, once they have been tokenised."""
        return self._bad_words_token_ids

    @property
    def sampling_type(self) -> SamplingType:
        """The kind of sampling that temperature and seed imply."""
        if self.temperature < _GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    def update_from_generation_config(
        self, generation_config: Mapping[str, Any], model_eos_token_id: int | None = None
    ) -> None:
        """Adds the model's end-of-sequence tokens to those that end the output.

        Args:
            generation_config: Its `eos_token_id`, one id or several, is added to
                `all_stop_token_ids` and, unless `ignore_eos` is set, to `stop_token_ids`.
            model_eos_token_id: The primary id. The engine stops at it in any case, so it is added
                to `all_stop_token_ids` only.
        """
        if model_eos_token_id is not None:
            self._all_stop_token_ids.add(model_eos_token_id)
        given = generation_config.get("eos_token_id")
        if given is None:
            return
        others = {given} if isinstance(given, int) else set(given)
        others.discard(model_eos_token_id)
        self._all_stop_token_ids |= others
        if others and not self.ignore_eos:
            self.stop_token_ids = list(others.union(self.stop_token_ids or ()))

    def clone(self) -> SamplingParams:
        """Returns a deep copy; logits processors are shared, or cloned by their own method."""
        processors = self.logits_processors or ()
        shared = {id(one): one.clone() if hasattr(one, "clone") else one for one in processors}
        return copy.deepcopy(self, shared)


class PoolingParams(msgspec.Struct, array_like=True, omit_defaults=True):
    """Parameters of pooling hidden states into an embedding or a score.

    Raises:
        SequenceError: `output_kind` is not `FINAL_ONLY`; pooling has no partial output.
    """

    dimensions: Public[int | None] = None
    use_cross_encoder: Public[bool] = False
    additional_data: Private[Any | None] = None
    output_kind: Public[RequestOutputKind] = RequestOutputKind.FINAL_ONLY

    def __post_init__(self) -> None:
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            raise SequenceError(f"pooling gives its output at the end, not {self.output_kind.name}")

    def clone(self) -> PoolingParams:
        """Returns a copy."""
        return PoolingParams(self.dimensions, self.use_cross_encoder, self.additional_data)
