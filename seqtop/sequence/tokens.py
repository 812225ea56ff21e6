"""Compact arrays of token ids, as signed C longs."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    TokenArray: TypeAlias = array[int]
else:
    # A decoder dispatches on the class, which the subscripted alias is not.
    TokenArray: TypeAlias = array

VLLM_TOKEN_ID_ARRAY_TYPE: Final = "l"
"""The type code of every token id array: a C long, encoded in 8 bytes."""

VLLM_INVALID_TOKEN_ID: Final = -1
"""The placeholder of a missing token, which no vocabulary contains."""


def array_full(token_id: int, count: int) -> TokenArray:
    """Returns a token id array of `count` times `token_id`."""
    return array(VLLM_TOKEN_ID_ARRAY_TYPE, [token_id]) * count
