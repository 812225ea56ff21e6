"""Encodes tensors as a MessagePack extension: `[dtype, shape, bytes]` with type code 84.

`dtype` is torch's name for the element type (``"bfloat16"``), `shape` a list of sizes, and the
bytes hold the elements in row-major order, each little-endian. vLLM sends nil instead.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from seqtop.sequence.tensors import Tensor
from seqtop.wire.error_location import describe_error

TENSOR_CODE: Final = ord("T")

_MAX_DIMS: Final = 64  # the limit of torch's own kernels
_ITEM_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_Shape: TypeAlias = Annotated[list[_Size], msgspec.Meta(max_length=_MAX_DIMS)]
_Parts: TypeAlias = tuple[str, _Shape, bytes]

_encode_parts: Final = msgspec.msgpack.Encoder().encode
_decode_parts: Final = msgspec.msgpack.Decoder(_Parts).decode


def pack_tensor(tensor: Tensor) -> msgspec.msgpack.Ext:
    """Encodes a tensor of any device.

    Raises:
        TypeError: The tensor is not dense, or its element type is not supported.
    """
    torch: Any = importlib.import_module("torch")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _ITEM_BYTES:
        raise TypeError(f"a tensor of {dtype} elements cannot be encoded")
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise TypeError(f"a tensor without dense elements ({tensor.layout}) cannot be encoded")
    data = bytearray(tensor.numel() * _ITEM_BYTES[dtype])
    if data:
        flat = torch.frombuffer(data, dtype=tensor.dtype)
        flat.copy_(tensor.detach().reshape(-1))
        _to_little_endian(flat, _ITEM_BYTES[dtype])
    return msgspec.msgpack.Ext(TENSOR_CODE, _encode_parts((dtype, list(tensor.shape), data)))


def unpack_tensor(payload: memoryview) -> Tensor:
    """Decodes a tensor, on the CPU, from the data of an extension of code `TENSOR_CODE`.

    Raises:
        ValueError: The payload is malformed, or torch is not installed.
    """
    try:
        name, shape, data = _decode_parts(payload)
    except msgspec.MsgspecError as error:
        raise ValueError(f"malformed tensor: {describe_error(error, _Parts, payload)}") from error
    item_bytes = _ITEM_BYTES.get(name)
    if item_bytes is None:
        raise ValueError(f"unknown tensor element type {name!r}")
    if math.prod(shape) * item_bytes != len(data):
        raise ValueError(f"{len(data)} bytes do not fill a {name} tensor of shape {shape}")
    if name == "bool" and data.translate(None, b"\0\1"):
        raise ValueError("a bool tensor holds bytes other than 0 and 1")
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise ValueError("a tensor arrived, and torch is not installed") from error
    if not data:
        empty: Tensor = torch.empty(shape, dtype=getattr(torch, name))
        return empty
    flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, name))
    _to_little_endian(flat, item_bytes)
    tensor: Tensor = flat.reshape(shape)
    return tensor


def _to_little_endian(flat: Any, item_bytes: int) -> None:
    """Converts between the machine's byte order and the wire's, in place."""
    if sys.byteorder == "big":
        octets = flat.view(importlib.import_module("torch").uint8).view(-1, item_bytes)
        octets.copy_(octets.flip(1))
