"""Writes what `make protocol` writes: field tables of `docs/protocol.md`, and a JSON Schema."""

import ast
import enum
import inspect
import json
import re
from array import array
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect as types

from seqtop import sequence as vllm
from seqtop.sequence.privacy import Privacy
from seqtop.wire import messages, snapshot
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.redaction import privacy_of

PATH: Final = Path(__file__).with_name("protocol.md")
SCHEMA_PATH: Final = Path(__file__).with_name("protocol.schema.json")
BEGIN: Final = "<!-- written by `make protocol`; do not edit -->\n"
END: Final = "<!-- end -->\n"

_GROUPS: Final[dict[str, tuple[type, ...]]] = {
    "Fields of events": get_args(messages.Event),
    "Fields in a step": (
        messages.SequenceUpdate,
        messages.Chunk,
        messages.PrefixMiss,
        messages.Preemption,
        messages.WaitReason,
        messages.StepStats,
        messages.CudaGraph,
        messages.CachedBlocks,
        messages.ControlCall,
    ),
    "Fields of requests and replies": (
        *get_args(messages.Command),
        messages.EngineSummary,
        messages.Accepted,
        messages.Refused,
    ),
    "Fields of snapshots": (
        snapshot.Snapshot,
        snapshot.SnapshotPart,
        snapshot.RequestSnapshot,
        snapshot.SequenceSnapshot,
        snapshot.RequestHistory,
        snapshot.SequenceHistory,
        snapshot.EngineHistory,
        snapshot.Span,
        snapshot.WaitTimes,
        snapshot.BlockedTimes,
        snapshot.StepCosts,
        snapshot.Inversion,
        snapshot.Limits,
    ),
    "vLLM's types": (
        vllm.ExecuteModelRequest,
        vllm.SequenceGroupMetadata,
        vllm.SequenceGroupMetadataDelta,
        vllm.SequenceGroupState,
        vllm.SequenceData,
        vllm.SequenceDataDelta,
        vllm.RequestMetrics,
        vllm.SamplingParams,
        vllm.PoolingParams,
        vllm.Logprob,
    ),
}
STRUCTS: Final = tuple(struct for group in _GROUPS.values() for struct in group)

_NONE: Final = re.compile(r"`None`|\bNone\b(?! of)")

_ENUMERATIONS: Final[dict[str, Any]] = {
    "PreemptionMode": messages.PreemptionMode,
    "QueueOrder": messages.QueueOrder,
    "WaitCause": messages.WaitCause,
    "MissCause": messages.MissCause,
    "SpanKind": snapshot.SpanKind,
    "SequenceStatus": vllm.SequenceStatus,
    "SequenceStage": vllm.SequenceStage,
    "RequestOutputKind": vllm.RequestOutputKind,
}
_NAMES_BY_VALUES: Final = {
    frozenset(get_args(alias)): name for name, alias in _ENUMERATIONS.items() if get_args(alias)
}

UNITS: Final = {
    "seconds since the epoch": """arrival_time renewed_arrival_time first_scheduled_time
        first_token_time finished_time last_token_time start_time time since until Span.start
        Span.end""",
    "seconds": """heartbeat_interval scheduler_time model_forward_time model_execute_time
        paced_time time_in_queue Inversion.seconds WaitTimes.total by_cause named blocked_before
        WaitTimes.between between_before BlockedTimes.between harm
        harm_estimated per_step per_prefill_token per_decode_token without_graph oldest_wait
        ttft_p50 ttft_p99 itl_p50 itl_p99""",
    "tokens": """block_size max_num_batched_tokens max_model_len max_num_encoder_input_tokens
        encoder_cache_size num_prompt_tokens num_computed_tokens num_tokens num_padded_tokens
        num_cached_tokens num_external_tokens num_draft_tokens num_accepted_tokens num_lost_tokens
        num_prefill_tokens num_decode_tokens prefix_cache_queries prefix_cache_hits
        num_encoder_tokens num_used_encoder_slots num_output_tokens num_missed_tokens num_drafted
        num_accepted token_chunk_size num_prompt_hits fork_length new_num_computed_tokens
        _num_computed_tokens _num_cached_tokens num_speculative_tokens num_lookahead_slots
        max_tokens min_tokens truncate_prompt_tokens spec_token_acceptance_counts""",
    "tokens per second": "generated_rate prefill_rate",
    "steps per second": "step_rate",
    "blocks": """num_gpu_blocks num_cpu_blocks num_reserved_blocks num_used_blocks num_free_blocks
        num_cached_blocks num_free_cpu_blocks num_late_blocks""",
    "bytes": "bytes_per_block",
    "block numbers": """new_blocks block_table group_block_tables blocks uncached_blocks host_table
        block_tables computed_block_nums cross_block_table blocks_to_swap_in blocks_to_swap_out
        blocks_to_copy""",
    "index of a block in its table": "position",
    "code points": "text_lengths last_delta_length output_text_buffer_length",
    "token ids": """prompt_token_ids new_token_ids output_token_ids new_output_token_ids
        _prompt_token_ids _output_token_ids _prompt_token_ids_tuple _cached_all_token_ids
        _new_appended_tokens stop_token_ids _all_stop_token_ids allowed_token_ids
        _bad_words_token_ids token_type_ids""",
    "token id": "eos_token_id",
    "token id, or text": "stop_reason",
    "sequence ids": "seq_id seq_ids parent_seq_id",
    "sequences": "max_num_seqs num_running num_waiting num_swapped num_parked",
    "requests": "num_finished running_queue_size num_holders",
    "calls of the scheduler": "num_schedule_calls",
    "inputs of an encoder": "num_encoder_inputs",
    "preemptions": "num_preemptions",
    "places in the queue": "num_queued queue_turn",
    "LoRA adapters": "max_loras num_used_loras",
    "rank": "data_parallel_rank Logprob.rank",
    "priority; the lowest is first": "priority",
    "step number": "step preemption_steps last_step",
    "steps": "num_steps num_fitted num_steps_seen num_scheduled_steps current_step spec_step_idx",
    "as the cause says": "num_missing",
    "products of numbers of steps, tokens and seconds": "products",
    "seconds, tokens, or numbers of steps and requests": "sums samples",
    "messages": "index num_messages",
    "events": "num_anomalies",
    "natural logarithm": """new_logprobs output_logprobs cumulative_logprob Logprob.logprob
        new_cumulative_logprob _cumulative_logprob""",
    "candidates": "logprobs prompt_logprobs top_k",
    "sequences of the answer": "n best_of _real_n",
    "number": """presence_penalty frequency_penalty repetition_penalty temperature top_p min_p seed
        logit_bias""",
    "engine number": "virtual_engine",
    "positions": "_mrope_position_delta",
    "elements": "dimensions",
    "as the setting says": "scheduler_settings kv_cache_specs",
    "as the call says": "ControlCall.argument",
}
"""Fields by their unit: a name, or `Struct.name` if others of that name have another unit."""

EFFECTS: Final = {
    "Appended": "new_token_ids text_delta new_blocks new_logprobs top_logprobs",
    "Added to the total": "num_draft_tokens num_accepted_tokens",
    "Replaces": """status num_computed_tokens num_cached_tokens num_external_tokens block_table
        stop_reason group_block_tables prefix_misses engine_status""",
    "Removes the sequence": "is_removed",
    "Creates the sequence": "parent_seq_id",
}
"""The effect of each field of a `SequenceUpdate` on the state."""


def unit_of(struct: type, name: str) -> str | None:
    """Returns the unit of a field; `None` if it has none."""
    for wanted in (f"{struct.__name__}.{name}", name):
        for unit, names in UNITS.items():
            if wanted in names.split():
                return unit
    return None


def is_numeric(node: types.Type) -> bool:
    """Returns whether a value of a type is a number or has some, apart from keys."""
    match node:
        case types.IntType() | types.FloatType():
            return True
        case types.CustomType(cls=cls):
            return cls.__name__ in {"Ints", "Floats", "array"}
        case types.UnionType(types=nodes) | types.TupleType(item_types=nodes):
            return any(map(is_numeric, nodes))
        case types.DictType(value_type=item) | types.CollectionType(item_type=item):
            return is_numeric(item)
    return False


def fields_of(struct: type) -> tuple[types.Field, ...]:
    """Returns the fields of a struct or dataclass, in order."""
    info = types.type_info(struct)
    assert isinstance(info, types.StructType | types.DataclassType)
    return info.fields


def tables() -> str:
    """Returns the tables of all structs and enumerations."""
    parts: list[str] = []
    for title, structs in _GROUPS.items():
        parts += [f"## {title}\n", *map(_table, structs)]
    rows = [_enumeration(name, alias) for name, alias in _ENUMERATIONS.items()]
    heading = "## Enumerations\n\n| name | values | meaning |\n|---|---|---|\n"
    return "\n".join([*parts, heading + "".join(rows)])


def page(text: str) -> str:
    """Returns the page with the present tables between its markers."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.split(END)[1]


def schema() -> str:
    """Returns the JSON Schema of all messages, in the form that `docs/golden/README.md` defines."""
    sent = [
        *get_args(messages.Event),
        *get_args(messages.Command),
        *get_args(snapshot.Reply),
    ]
    references, definitions = msgspec.json.schema_components(
        dict.fromkeys(sent), schema_hook=schema_of, ref_template="#/$defs/{name}"
    )
    for struct in STRUCTS:
        _name_fields(struct, definitions[struct.__name__])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A message of the seqtop protocol, version {messages.PROTOCOL_VERSION}",
        "anyOf": list(references),
        "$defs": definitions,
    }
    return json.dumps(document, indent=1) + "\n"


def schema_of(kind: type) -> dict[str, Any]:
    """Returns the schema of a type that msgspec does not know."""
    if issubclass(kind, array):
        item = "number" if kind is Floats else "integer"
        return {"type": "array", "items": {"type": item}}
    return {"description": f"{kind.__name__}; engines outside of vLLM send null"}


def _name_fields(struct: type, definition: dict[str, Any]) -> None:
    """Adds the names and meanings of the fields of a struct to its schema."""
    definition["description"] = in_json(summary_of(struct))
    documented, fields = meanings(struct), fields_of(struct)
    if "prefixItems" in definition:
        schemas = definition["prefixItems"][-len(fields) :] if fields else []
        for field, item in zip(fields, schemas, strict=True):
            item["title"] = field.encode_name
    else:
        schemas = [definition["properties"][field.encode_name] for field in fields]
    for field, item in zip(fields, schemas, strict=True):
        if meaning := documented.get(field.name):
            item["description"] = in_json(meaning)


def summary_of(struct: type) -> str:
    """Returns the first paragraph of the docstring of a struct, on one line."""
    return (inspect.getdoc(struct) or "").split("\n\n")[0].replace("\n", " ")


def _table(struct: type) -> str:
    info, documented = types.type_info(struct), meanings(struct)
    is_array = isinstance(info, types.StructType) and info.array_like
    tag = info.tag if isinstance(info, types.StructType) else None
    form = f"An array that begins with `{tag!s}`." if tag else "An array."
    summary = _linked(summary_of(struct))
    head = f"### {struct.__name__}\n\n{summary} {form if is_array else 'A map.'}\n\n"
    fields = fields_of(struct)
    if not fields:
        return head
    kept = privacy_of(struct) if issubclass(struct, msgspec.Struct) else {}
    rows = ["| # | field | type | default | unit | meaning |", "|---|---|---|---|---|---|"]
    for index, field in enumerate(fields, 1 if tag else 0):
        privacy = kept.get(field.name)
        remarks = (
            _remark(effect_of(field.name)) if struct is messages.SequenceUpdate else "",
            _linked(documented.get(field.name, "")),
            _remark(privacy.value) if privacy in {Privacy.MASKED, Privacy.PRIVATE} else "",
        )
        cells = (
            str(index) if is_array else "",
            f"`{field.encode_name}`",
            _type(field.type),
            _default(field),
            (unit_of(struct, field.name) or "") if is_numeric(field.type) else "",
            " ".join(filter(None, remarks)),
        )
        rows.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return head + "\n".join(rows) + "\n"


def effect_of(name: str) -> str | None:
    """Returns the effect of a field of a `SequenceUpdate`; `None` if it has none of its own."""
    return next((effect for effect, names in EFFECTS.items() if name in names.split()), None)


def _remark(text: str | None) -> str:
    return f"*{text.capitalize()}.*" if text else ""


def _type(node: types.Type) -> str:
    """Returns a type in MessagePack's words."""
    match node:
        case types.UnionType(types=nodes):
            return " or ".join(map(_type, sorted(nodes, key=_is_nil)))
        case types.StructType(cls=cls) | types.DataclassType(cls=cls):
            known = cls in STRUCTS
            return f"[`{cls.__name__}`](#{cls.__name__.lower()})" if known else f"`{cls.__name__}`"
        case types.EnumType(cls=cls):
            return f"[`{cls.__name__}`](#enumerations)"
        case types.LiteralType(values=values):
            return f"[`{_NAMES_BY_VALUES[frozenset(values)]}`](#enumerations)"
        case types.StrType(max_length=length):
            return "string" if length is None else "name"
        case types.DictType(key_type=key, value_type=value):
            return f"map of {_type(key)} to {_type(value)}"
        case types.TupleType(item_types=nodes):
            return f"array of {len(nodes)}: {', '.join(map(_type, nodes))}"
        case types.CollectionType(item_type=item):
            return f"array of {_type(item)}"
        case types.CustomType(cls=cls):
            if cls in (Ints, Floats):
                item_word = "integer" if cls is Ints else "float"
                return f"[packed array](#packed-arrays) of {item_word}"
            words = {"array": "bin of 8-byte integers", "Tensor": "tensor"}
            return words.get(cls.__name__, f"`{cls.__name__}`")
    words = {"Int": "integer", "Float": "float", "Bool": "boolean", "None": "nil", "Any": "any"}
    return words.get(type(node).__name__.removesuffix("Type"), "any")


def _is_nil(node: types.Type) -> bool:
    return isinstance(node, types.NoneType)


def _default(field: types.Field) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case enum.Enum():
            return f"{value.value}"
        case msgspec.Struct():
            return "all defaults"
        case str():
            return f'`"{value}"`'
        case int() | float():
            return f"{value:g}"
        case dict():
            return "empty"
    return "empty" if not len(value) else f"{value}"


def _enumeration(name: str, alias: Any) -> str:
    if isinstance(alias, enum.EnumType):
        values = ", ".join(f"{alias[key].value} `{key}`" for key in alias.__members__)
        meaning = (inspect.getdoc(alias) or "").split("\n\n")[0].replace("\n", " ")
    else:
        values = ", ".join(f"`{value}`" for value in get_args(alias))
        meaning = _aliases().get(name, "")
    return f"| `{name}` | {values} | {_linked(meaning)} |\n"


def meanings(struct: type) -> dict[str, str]:
    """Returns what the source says about each field: below it, or as an attribute of its class.

    Fields that it inherits are included.
    """
    found: dict[str, str] = {}
    for own in reversed([own for own in struct.__mro__ if own.__module__.startswith("seqtop.")]):
        for node in _tree(inspect.getsourcefile(own) or "").body:
            if isinstance(node, ast.ClassDef) and node.name == own.__name__:
                found |= _attributes(own) | _documented(node.body)
    return found


def _attributes(struct: type) -> dict[str, str]:
    listed = (inspect.getdoc(struct) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    attributes = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", listed, re.MULTILINE)
    return {name: _joined(text) for name, text in attributes}


def _aliases() -> dict[str, str]:
    trees = [_tree(module.__file__ or "") for module in (messages, snapshot)]
    return {name: text for tree in trees for name, text in _documented(tree.body).items()}


def _documented(body: list[ast.stmt]) -> dict[str, str]:
    """Returns the strings that follow declarations, by the name that is declared."""
    documented: dict[str, str] = {}
    for declared, following in pairwise(body):
        match declared, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                documented[name] = _joined(text)
    return documented


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _joined(text: str) -> str:
    return " ".join(text.split())


def _linked(text: str) -> str:
    """Returns text as a cell of a table, in MessagePack's words."""
    return _NONE.sub("nil", text).replace("|", "\\|")


def in_json(text: str) -> str:
    """Returns text in JSON's words."""
    return _NONE.sub("null", text)


if __name__ == "__main__":
    SCHEMA_PATH.write_text(schema(), encoding="utf-8")
    PATH.write_text(page(PATH.read_text(encoding="utf-8")), encoding="utf-8")
