"""The bodies of requests. Fields have the names of OpenAI and vLLM; unknown ones are ignored.

Clients send many fields that change nothing here, such as ``metadata`` or ``service_tier``. Fields
that ask for another output than the engine would give are declared, and refused unless they have a
value without effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from engine_stub.core.beam_search import MAX_LENGTH_PENALTY, BeamSearchParams
from engine_stub.entrypoints.openai.chat import ConversationMessage
from engine_stub.entrypoints.openai.errors import ApiError, invalid_value
from engine_stub.processing.input_processor import MAX_SAMPLES, Prompt
from seqtop.sequence import SamplingParams

MAX_PROMPTS = 2048
"""The most prompts of one request, as of OpenAI's embeddings; also its most samples."""

_SAMPLED = (
    "n stop max_tokens temperature top_p seed presence_penalty frequency_penalty logit_bias"
    " top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids skip_special_tokens"
    " include_stop_str_in_output"
).split()
"""Fields that `SamplingParams` has under the same name."""

_NOT_FOR_BEAMS = (
    "stream stop top_p seed presence_penalty frequency_penalty logit_bias top_k min_p"
    " repetition_penalty min_tokens stop_token_ids logprobs echo"
).split()
"""Fields that a beam search does not support."""

_DEFAULT_MAX_TOKENS = 16
"""The longest output of a beam search if none is given, as of samples."""

_Stops: TypeAlias = str | Annotated[list[str], Meta(max_length=16)]
_Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
_Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
_LengthPenalty: TypeAlias = Annotated[float, Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)]
_Prompts: TypeAlias = str | list[int | str | list[int]]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1 - MAX_SAMPLES)]


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "logits_processors": (None, []),
    "structured_outputs": (None,),
    "truncate_prompt_tokens": (None,),
}


def as_prompts(name: str, given: _Prompts) -> list[Prompt]:
    """Returns one or several prompts as a list: of texts, or of token ids.

    Args:
        name: The field that they were given in.

    Raises:
        ApiError: There are too many, or they are of several kinds.
    """
    if isinstance(given, str):
        return [given]
    token_ids = [part for part in given if isinstance(part, int)]
    if len(token_ids) == len(given):
        return [token_ids]
    if len(given) > MAX_PROMPTS:
        raise invalid_value(name, f"it holds {len(given)} prompts, and {MAX_PROMPTS} is the most")
    prompts: list[Prompt] = [part for part in given if not isinstance(part, int)]
    if token_ids or len({type(prompt) for prompt in prompts}) > 1:
        raise invalid_value(name, "it must be a text, token ids, or a list of one of these")
    return prompts


class StreamOptions(msgspec.Struct):
    """Options of a streamed response."""

    include_usage: bool = False


class SamplingRequest(msgspec.Struct, kw_only=True):
    """The fields that both kinds of request share; None means the default, as in OpenAI's API.

    Attributes:
        unsupported: By unsupported field, the values that are accepted because they have no effect.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    n: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None = None
    stop: _Stops | None = None
    max_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    seed: _Seed | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    logit_bias: Annotated[dict[int, _Bias], Meta(max_length=300)] | None = None
    # vLLM's extensions, which load generators set.
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=300)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    allowed_token_ids: Any = None
    bad_words: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    logits_processors: Any = None
    structured_outputs: Any = None
    truncate_prompt_tokens: Any = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _UNSUPPORTED

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """The field that limits the output, and its value in tokens."""
        return "max_tokens", self.max_tokens

    def params(self, stops: Sequence[str] = ()) -> SamplingParams | BeamSearchParams:
        """Returns the parameters for the engine.

        Args:
            stops: Stop strings in addition to the request's own.

        Raises:
            ApiError: A field is not supported.
            ValueError: A value is out of range.
        """
        for name, harmless in self.unsupported.items():
            if getattr(self, name) not in harmless:
                raise ApiError(
                    f"Unsupported parameter: '{name}' is not supported by this engine.",
                    param=name,
                    code="unsupported_parameter",
                )
        if self.stream_options is not None and not self.stream:
            raise invalid_value("stream_options", "it is for requests with stream set")
        given = {name: getattr(self, name) for name in _SAMPLED}
        given = {name: value for name, value in given.items() if value is not None}
        own_stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        given["stop"] = [*own_stops, *stops]
        return SamplingParams(**given | self._own_params())

    def _own_params(self) -> dict[str, Any]:
        raise NotImplementedError


class CompletionRequest(SamplingRequest, kw_only=True):
    """The body of ``/v1/completions``.

    Attributes:
        prompt: One prompt, a text or a list of token ids, or a list of prompts.
        max_tokens: The most tokens of output; 0 only with `echo`.
        logprobs: The number of likeliest tokens to report beside each sampled one.
        echo: Whether the output begins with the prompt, and `logprobs` with those of its tokens.
        use_beam_search: Whether to respond with the `n` likeliest outputs, best first, as vLLM.
        length_penalty: For a beam search: above 0 favours long outputs, below 0 short ones.
    """

    prompt: _Prompts
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    use_beam_search: bool | None = None
    length_penalty: _LengthPenalty | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _UNSUPPORTED | {
        "best_of": (None, 1),
        "suffix": (None, ""),
    }

    def prompts(self) -> list[Prompt]:
        """Returns the prompts for the engine.

        Raises:
            ApiError: There are too many, or they are of several kinds.
        """
        prompts = as_prompts("prompt", self.prompt)
        if len(prompts) * (self.n or 1) > MAX_PROMPTS:
            raise invalid_value(
                "prompt",
                f"{len(prompts)} prompts with n={self.n} are more than {MAX_PROMPTS} samples",
            )
        return prompts

    def params(self, stops: Sequence[str] = ()) -> SamplingParams | BeamSearchParams:
        """Returns the parameters for the engine; see `SamplingRequest.params`."""
        if self.use_beam_search:
            return self._beam_search_params()
        if self.length_penalty is not None:
            raise invalid_value("length_penalty", "it is for requests with use_beam_search set")
        if self.max_tokens == 0 and not self.echo:
            raise invalid_value("max_tokens", "it must be at least 1 in requests without echo")
        return super().params(stops)

    def _beam_search_params(self) -> BeamSearchParams:
        for name in (*_NOT_FOR_BEAMS, *self.unsupported):
            if getattr(self, name) not in self.unsupported.get(name, (None, False)):
                raise invalid_value(name, "it is not for requests with use_beam_search set")
        return BeamSearchParams(
            beam_width=self.n or 1,
            max_tokens=_DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            ignore_eos=bool(self.ignore_eos),
            temperature=self.temperature or 0.0,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
        )

    def _own_params(self) -> dict[str, Any]:
        own: dict[str, Any] = {"logprobs": self.logprobs}
        if self.echo:
            own["prompt_logprobs"] = self.logprobs
        if self.max_tokens == 0:
            # The engine ends a request with a token; `TextFormat` leaves it out.
            own["max_tokens"] = 1
        return own


class ChatCompletionRequest(SamplingRequest, kw_only=True):
    """The body of ``/v1/chat/completions``.

    Attributes:
        logprobs: Whether to report the log probabilities of the sampled tokens.
        top_logprobs: The number of likeliest tokens to report beside each.
        max_completion_tokens: OpenAI's newer name of `max_tokens`. Without either, the output is
            limited by the longest sequence.
        chat_template_kwargs: Variables of the model's chat template, as in vLLM.
    """

    messages: Annotated[list[ConversationMessage], Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_completion_tokens: _Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: Any = None
    function_call: Any = None
    tools: Any = None
    tool_choice: Any = None
    response_format: Any = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = _UNSUPPORTED | {
        "functions": (None, []),
        "function_call": (None, "none"),
        "tools": (None, []),
        "tool_choice": (None, "none", "auto"),
        "response_format": (None, {"type": "text"}),
    }

    @property
    def output_limit(self) -> tuple[str, int | None]:
        """The field that limits the output, and its value in tokens."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().output_limit

    def _own_params(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid_value("top_logprobs", "it is for requests with logprobs set")
        return {
            "max_tokens": self.output_limit[1],
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }
