"""The golden data, and the way between its plain JSON and objects of our own."""

import dataclasses
import enum
import json
import lzma
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from seqtop import sequence as S  # noqa: N812 - stands before every other name here

_FOLDER = Path(__file__).parent.parent / "data" / "golden"


@cache
def vectors() -> list[dict[str, Any]]:
    return _load("vectors.json.xz")["vectors"]  # type: ignore[no-any-return]


@cache
def streams() -> list[dict[str, Any]]:
    return _load("streams.json.xz")["streams"]  # type: ignore[no-any-return]


@cache
def tolerance() -> list[dict[str, Any]]:
    text = (_FOLDER / "decode_tolerance.json").read_text("utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _load(name: str) -> dict[str, Any]:
    text = lzma.decompress((_FOLDER / name).read_bytes())
    return json.loads(text)  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """An object in the golden data's plain form."""
    match value:
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case enum.Enum():
            return value.value
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case set():
            return sorted(value)
        case list() | tuple() | array():
            return [plain(item) for item in value]
        case float() if value in (float("inf"), float("-inf")):
            return {"$float": str(value)}
        case _ if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return {field.name: plain(getattr(value, field.name)) for field in fields}
        case _:
            return value


def received(fields: Any) -> Any:
    """The plain form of an object once vLLM has sent it: what it cannot encode is None."""
    match fields:
        case {"$repr": _}:
            return None
        case dict():
            return {key: received(item) for key, item in fields.items()}
        case list():
            return [received(item) for item in fields]
        case _:
            return fields


def build(type_name: str, fields: dict[str, Any]) -> Any:
    """Our object with these field values, through its constructor."""
    return _BUILDERS.get(type_name, lambda f: getattr(S, type_name)(**f))(fields)


def _each(type_name: str) -> Any:
    return lambda items: [build(type_name, item) for item in items]


def _by_id(type_name: str) -> Any:
    return lambda items: {int(key): build(type_name, item) for key, item in items.items()}


def _one(type_name: str) -> Any:
    return lambda fields: build(type_name, fields)


def _tables(tables: dict[str, list[int]]) -> dict[int, list[int]]:
    return {int(seq_id): blocks for seq_id, blocks in tables.items()}


def _ids(ids: list[int]) -> Any:
    return array("l", ids)


def _pairs(pairs: list[list[int]]) -> list[tuple[int, ...]]:
    return [tuple(pair) for pair in pairs]


def _float(value: Any) -> float:
    return float(value["$float"]) if isinstance(value, dict) else value


def _groups(items: list[dict[str, Any]]) -> list[Any]:
    kinds = ("SequenceGroupMetadata", "SequenceGroupMetadataDelta")
    return [build(kinds["seq_data_delta" in item], item) for item in items]


def _prompt_logprobs(items: list[Any]) -> list[Any]:
    return [None if item is None else _by_id("Logprob")(item) for item in items]


def _builder(type_name: str, **conversions: Any) -> Any:
    def convert(fields: dict[str, Any]) -> Any:
        changed = {
            name: conversions[name](value) if name in conversions and value is not None else value
            for name, value in fields.items()
        }
        cls = getattr(S, type_name)
        if issubclass(cls, msgspec.Struct):
            # A map leaves a float out if it *is* the default, so an equal one must not be passed.
            for field in msgspec.structs.fields(cls):
                if isinstance(field.default, float) and changed[field.name] == field.default:
                    del changed[field.name]
        return cls(**changed)

    return convert


_BUILDERS = {
    "SequenceData": _builder(
        "SequenceData",
        _prompt_token_ids=_ids,
        _output_token_ids=_ids,
        _stage=S.SequenceStage,
        # Wrong on purpose: construction has to rebuild these two.
        _prompt_token_ids_tuple=lambda _: (-1,),
        _cached_all_token_ids=lambda _: [-1],
    ),
    "SequenceDataDelta": _builder("SequenceDataDelta", new_stage=S.SequenceStage),
    "SequenceGroupMetadata": _builder(
        "SequenceGroupMetadata",
        seq_data=_by_id("SequenceData"),
        sampling_params=_one("SamplingParams"),
        pooling_params=_one("PoolingParams"),
        lora_request=_one("LoRARequest"),
        prompt_adapter_request=_one("PromptAdapterRequest"),
        multi_modal_data=lambda _: S.MultiModalKwargs(),
        encoder_seq_data=_one("SequenceData"),
        block_tables=_tables,
        state=_one("SequenceGroupState"),
    ),
    "SequenceGroupMetadataDelta": _builder(
        "SequenceGroupMetadataDelta",
        seq_data_delta=_by_id("SequenceDataDelta"),
        block_tables=_tables,
        state=_one("SequenceGroupState"),
    ),
    "ExecuteModelRequest": _builder(
        "ExecuteModelRequest",
        seq_group_metadata_list=_groups,
        blocks_to_swap_in=_pairs,
        blocks_to_swap_out=_pairs,
        blocks_to_copy=_pairs,
    ),
    "SamplingParams": _builder(
        "SamplingParams",
        output_kind=S.RequestOutputKind,
        _all_stop_token_ids=set,
        guided_decoding=_one("GuidedDecodingParams"),
        logit_bias=lambda bias: {int(token): value for token, value in bias.items()},
    ),
    "PoolingParams": _builder("PoolingParams", output_kind=S.RequestOutputKind),
    "Logprob": _builder("Logprob", logprob=_float),
    "SequenceOutput": _builder("SequenceOutput", logprobs=_by_id("Logprob")),
    "CompletionSequenceGroupOutput": _builder(
        "CompletionSequenceGroupOutput",
        samples=_each("SequenceOutput"),
        prompt_logprobs=_prompt_logprobs,
    ),
    "PoolerOutput": _builder("PoolerOutput", outputs=_each("PoolingSequenceGroupOutput")),
}
