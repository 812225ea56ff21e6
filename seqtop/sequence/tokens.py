"""How token ids are kept: compact arrays of signed C longs."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    TokenArray: TypeAlias = array[int]
else:
    # A decoder dispatches on the class itself, which the subscripted alias is not.
    TokenArray: TypeAlias = array

VLLM_TOKEN_ID_ARRAY_TYPE: Final = "l"
"""Type code of every token id array (a C long; on the wire always 8 bytes)."""

VLLM_INVALID_TOKEN_ID: Final = -1
"""Stands where a token is missing; no vocabulary has it."""


def array_full(token_id: int, count: int) -> TokenArray:
    """A token id array that holds `token_id` `count` times."""
    return array(VLLM_TOKEN_ID_ARRAY_TYPE, [token_id]) * count
