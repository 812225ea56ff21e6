"""Inputs of a sequence: token ids, embeddings, or tokens with other modalities."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from seqtop.sequence.tensors import Tensor


class MultiModalKwargs(UserDict[str, Any]):
    """Model inputs of other modalities by argument name, mostly tensors; empty for text."""


@dataclass(frozen=True)
class PlaceholderRange:
    """A range of prompt positions that represents an item of another modality.

    Attributes:
        offset: The index of the first placeholder token.
        length: The number of placeholder tokens.
        is_embed: Boolean ``[length]``, true at embeddings; None if all positions are embeddings.
    """

    offset: int
    length: int
    is_embed: Tensor | None = None

    def get_num_embeds(self) -> int:
        """Returns the number of placeholder tokens that are replaced by an embedding."""
        return self.length if self.is_embed is None else int(self.is_embed.sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, self.__class__):
            return False
        if (self.offset, self.length) != (other.offset, other.length):
            return False
        if self.is_embed is None or other.is_embed is None:
            return self.is_embed is other.is_embed
        return self.is_embed.equal(other.is_embed)

    def __hash__(self) -> int:
        return hash((self.offset, self.length))


MultiModalPlaceholderDict: TypeAlias = Mapping[str, list[PlaceholderRange]]
"""Placeholder ranges by modality, in prompt order."""


class TokenInputs(TypedDict):
    """A prompt of token ids."""

    type: Literal["token"]
    prompt_token_ids: list[int]
    token_type_ids: NotRequired[list[int]]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EmbedsInputs(TypedDict):
    """A prompt of embeddings, ``[prompt_len, hidden_size]``."""

    type: Literal["embeds"]
    prompt_embeds: Tensor
    cache_salt: NotRequired[str]


class MultiModalInputs(TypedDict):
    """A prompt of token ids, with placeholders for items of other modalities."""

    type: Literal["multimodal"]
    prompt_token_ids: list[int]
    mm_kwargs: MultiModalKwargs
    mm_placeholders: MultiModalPlaceholderDict
    prompt: NotRequired[str]
    token_type_ids: NotRequired[list[int]]
    cache_salt: NotRequired[str]


SingletonInputs: TypeAlias = TokenInputs | EmbedsInputs | MultiModalInputs


def token_inputs(
    prompt_token_ids: list[int],
    prompt: str | None = None,
    token_type_ids: list[int] | None = None,
) -> TokenInputs:
    """Returns the inputs of a prompt of tokens, with its text if known."""
    inputs = TokenInputs(type="token", prompt_token_ids=prompt_token_ids)
    if prompt is not None:
        inputs["prompt"] = prompt
    if token_type_ids is not None:
        inputs["token_type_ids"] = token_type_ids
    return inputs


def embeds_inputs(prompt_embeds: Tensor) -> EmbedsInputs:
    """Returns the inputs of a prompt of embeddings, ``[prompt_len, hidden_size]``."""
    return EmbedsInputs(type="embeds", prompt_embeds=prompt_embeds)
