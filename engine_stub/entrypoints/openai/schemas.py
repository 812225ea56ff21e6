"""The bodies of requests. Fields have the names of OpenAI and vLLM; unknown ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from engine_stub.core.beam_search import MAX_LENGTH_PENALTY, BeamSearchParams
from engine_stub.entrypoints.openai.chat import ConversationMessage
from engine_stub.processing.input_processor import MAX_SAMPLES
from seqtop.sequence import SamplingParams

_SAMPLED = (
    "n stop max_tokens temperature top_p seed presence_penalty frequency_penalty logit_bias"
    " top_k min_p repetition_penalty min_tokens ignore_eos stop_token_ids"
).split()
"""Fields that `SamplingParams` has under the same name."""

_NOT_FOR_BEAMS = (
    "stream stop top_p seed presence_penalty frequency_penalty logit_bias top_k min_p"
    " repetition_penalty min_tokens stop_token_ids logprobs"
).split()
"""Fields that a beam search does not support."""

_DEFAULT_MAX_TOKENS = 16
"""The longest output of a beam search if none is given, as of samples."""

_Stops: TypeAlias = str | Annotated[list[str], Meta(max_length=16)]
_Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
_Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
_LengthPenalty: TypeAlias = Annotated[float, Meta(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)]
_Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1 - MAX_SAMPLES)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a streamed response."""

    include_usage: bool = False


class SamplingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields that both kinds of request share; None means the default, as in OpenAI's API.

    Attributes:
        unsupported: By unsupported field, the values that are accepted because they have no effect.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

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

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    def params(self, stops: Sequence[str] = ()) -> SamplingParams | BeamSearchParams:
        """Returns the parameters for the engine.

        Args:
            stops: Stop strings in addition to the request's own.

        Raises:
            ValueError: A value is out of range or not supported.
        """
        for name, harmless in self.unsupported.items():
            if getattr(self, name) not in harmless:
                raise ValueError(f"{name} is not supported by this engine")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for requests with stream set")
        given = {name: getattr(self, name) for name in _SAMPLED}
        given = {name: value for name, value in given.items() if value is not None}
        own_stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        given["stop"] = [*own_stops, *stops]
        return SamplingParams(**given | self._own_params())

    def _own_params(self) -> dict[str, Any]:
        raise NotImplementedError


class CompletionRequest(SamplingRequest):
    """The body of ``/v1/completions``.

    Attributes:
        prompt: Text or token ids; a list of one text means that text.
        logprobs: The number of likeliest tokens to report beside each sampled one.
        use_beam_search: Whether to respond with the `n` likeliest outputs, best first, as vLLM.
        length_penalty: For a beam search: above 0 favours long outputs, below 0 short ones.
    """

    prompt: str | list[int | str]
    use_beam_search: bool | None = None
    length_penalty: _LengthPenalty | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "best_of": (None, 1),
        "echo": (None, False),
        "suffix": (None, ""),
    }

    def engine_prompt(self) -> str | list[int]:
        """Returns the prompt for the engine.

        Raises:
            ValueError: There are several prompts.
        """
        if isinstance(self.prompt, str):
            return self.prompt
        token_ids = [each for each in self.prompt if isinstance(each, int)]
        texts = [each for each in self.prompt if isinstance(each, str)]
        if not texts:
            return token_ids
        if len(self.prompt) > 1:
            raise ValueError("prompt must be one prompt: a request for several is not supported")
        return texts[0]

    def params(self, stops: Sequence[str] = ()) -> SamplingParams | BeamSearchParams:
        """Returns the parameters for the engine; see `SamplingRequest.params`."""
        if self.use_beam_search:
            return self._beam_search_params()
        if self.length_penalty is not None:
            raise ValueError("length_penalty is for requests with use_beam_search set")
        return super().params(stops)

    def _beam_search_params(self) -> BeamSearchParams:
        for name in (*_NOT_FOR_BEAMS, *self.unsupported):
            if getattr(self, name) not in self.unsupported.get(name, (None, False)):
                raise ValueError(f"{name} is not for requests with use_beam_search set")
        return BeamSearchParams(
            beam_width=self.n or 1,
            max_tokens=self.max_tokens or _DEFAULT_MAX_TOKENS,
            ignore_eos=bool(self.ignore_eos),
            temperature=self.temperature or 0.0,
            length_penalty=1.0 if self.length_penalty is None else self.length_penalty,
        )

    def _own_params(self) -> dict[str, Any]:
        return {"logprobs": self.logprobs}


class ChatCompletionRequest(SamplingRequest):
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
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "tools": (None, []),
        "tool_choice": (None, "none"),
        "response_format": (None, {"type": "text"}),
    }

    def _own_params(self) -> dict[str, Any]:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs is for requests with logprobs set")
        return {
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }
