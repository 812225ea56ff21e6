"""Encodes and decodes sequence types and messages, byte for byte as vLLM 0.9.2 does.

The format is MessagePack, laid out by the struct definitions in `seqtop.sequence`. In addition:

- An array of token ids is `bin`: signed, 8 bytes per id, little-endian, on every machine.
- An array of numbers (`Ints`, `Floats`) is the extension described in `seqtop.wire.arrays`.
- A tensor is the extension described in `seqtop.wire.tensors`. vLLM sends nil instead of a tensor;
  this encoder sends the tensor. Nil from vLLM decodes to None.
- Empty multimodal inputs are nil, as with every plain prompt.
- Any other mapping is a map, and an integer or real number of a foreign type (such as numpy's) is
  that number.
- Everything else, including callbacks, is refused by name. vLLM silently sends nil.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Hashable, Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any, Final, TypeVar, cast

import msgspec

from seqtop.sequence.inputs import MultiModalKwargs
from seqtop.sequence.tensors import Tensor
from seqtop.sequence.tokens import VLLM_TOKEN_ID_ARRAY_TYPE, TokenArray
from seqtop.wire import arrays
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.element_count import MAX_ELEMENTS, check_elements
from seqtop.wire.error_location import describe_error, locate_failure, name_of
from seqtop.wire.errors import WireError
from seqtop.wire.tensors import TENSOR_CODE, pack_tensor, unpack_tensor

T = TypeVar("T")

_ID_BYTES: Final = 8
_ID_ARRAY_TYPE: Final = "q"  # always 8 bytes, unlike a C long
_ARRAY_IS_WIRE_FORM: Final = (
    sys.byteorder == "little" and array(VLLM_TOKEN_ID_ARRAY_TYPE).itemsize == _ID_BYTES
)


def encode(obj: Any) -> bytes:
    """Encodes a sequence type, a message, or a container of these.

    Raises:
        WireError: A part of it has no form on the wire. The message names the part.
    """
    try:
        return _encoder.encode(obj)
    except Exception as error:
        raise _encoding_error(obj, error) from error


def encode_into(obj: Any, buffer: bytearray) -> None:
    """Appends the result of `encode` to a buffer.

    Raises:
        WireError: A part of it has no form on the wire. The message names the part.
    """
    try:
        _encoder.encode_into(obj, buffer, -1)
    except Exception as error:
        raise _encoding_error(obj, error) from error


def decode(
    data: bytes | memoryview,
    type: type[T],  # noqa: A002 - msgspec's own name for it
    *,
    max_elements: int = MAX_ELEMENTS,
    name: str | None = None,
) -> T:
    """Decodes an object of a type.

    Args:
        data: One encoded object, in any buffer of bytes.
        type: The expected type, or any annotation that msgspec supports.
        max_elements: The limit on the number of elements, see `seqtop.wire.element_count`.
        name: The name of the type in an error; by default its own.

    Raises:
        WireError: `data` is not such an object, or has too many elements. The message names the
            field and the reason.
        TypeError: `type` cannot be decoded.
    """
    decoder = _decoder(cast(Hashable, type))
    try:
        check_elements(data, max_elements)
        return cast(T, decoder.decode(data))
    except Exception as error:
        reason = describe_error(error, type, data)
        raise WireError(f"cannot decode {name or name_of(type)}: {reason}") from error


def _encoding_error(obj: Any, error: Exception) -> WireError:
    location = locate_failure(_encoder.encode, obj)
    reason = f"{location}: {error}" if location else str(error)
    return WireError(f"cannot encode {type(obj).__qualname__}: {reason}")


def _encode_other(obj: Any) -> Any:
    if isinstance(obj, array):
        if isinstance(obj, Ints | Floats):
            return arrays.pack(obj)
        return _token_bytes(obj)
    if isinstance(obj, Tensor):
        return pack_tensor(obj)
    if isinstance(obj, MultiModalKwargs):
        return dict(obj) or None
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, Integral):
        return int(obj)
    if isinstance(obj, Real):
        return float(obj)
    foreign = type(obj)
    raise TypeError(f"{foreign.__module__}.{foreign.__qualname__} has no form on the wire")


def _decode_other(expected: type, obj: Any) -> Any:
    if type(obj) is expected:
        return obj
    if expected is Ints or expected is Floats:
        return arrays.as_array(expected, obj)
    if expected is array:
        return _token_array(obj)
    if expected is MultiModalKwargs and isinstance(obj, dict):
        return MultiModalKwargs(obj)
    if isinstance(obj, expected):
        return obj
    raise TypeError(f"expected {expected.__name__}, got {type(obj).__name__}")


def _decode_extension(code: int, data: memoryview) -> Any:
    if code in arrays.CODES:
        return arrays.unpack(code, data)
    if code == TENSOR_CODE:
        return unpack_tensor(data)
    raise ValueError(f"unknown extension type {code}")


def _token_bytes(ids: TokenArray) -> memoryview | bytes:
    if ids.typecode != VLLM_TOKEN_ID_ARRAY_TYPE:
        raise TypeError(
            f"token ids need an array of type code {VLLM_TOKEN_ID_ARRAY_TYPE!r}, "
            f"not {ids.typecode!r}"
        )
    if _ARRAY_IS_WIRE_FORM:
        return memoryview(ids)
    wide = array(_ID_ARRAY_TYPE, ids)
    if sys.byteorder == "big":
        wide.byteswap()
    return wide.tobytes()


def _token_array(data: Any) -> TokenArray:
    if not isinstance(data, bytes):
        raise TypeError(f"expected token ids as bytes, got {type(data).__name__}")
    if len(data) % _ID_BYTES:
        raise ValueError(f"{len(data)} bytes of token ids are no multiple of {_ID_BYTES}")
    if _ARRAY_IS_WIRE_FORM:
        return array(VLLM_TOKEN_ID_ARRAY_TYPE, data)
    wide = array(_ID_ARRAY_TYPE, data)
    if sys.byteorder == "big":
        wide.byteswap()
    return array(VLLM_TOKEN_ID_ARRAY_TYPE, wide)


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_encode_other)


_building: Final = threading.Lock()
"""Held while a decoder is made. msgspec stores what it knows of a struct in its class before it is
complete, and a second thread that makes a decoder meanwhile would use it, and crash."""


@cache
def _decoder(target: Hashable) -> msgspec.msgpack.Decoder[Any]:
    with _building:
        return msgspec.msgpack.Decoder(target, dec_hook=_decode_other, ext_hook=_decode_extension)
