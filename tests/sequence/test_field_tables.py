"""Every field of every type on the wire: its place, its name and its default, spelled out."""

import dataclasses
from array import array
from typing import Any

import msgspec
import pytest

from seqtop import sequence as S  # noqa: N812 - stands before every other name here

REQUIRED = object()
ARRAY, MAP = "array", "map"
PREFILL = S.SequenceStage.PREFILL

STRUCTS: dict[str, tuple[str, str | None, list[tuple[str, Any]]]] = {
    # name: (layout, tag, [(field, default), …])
    "SequenceData": (
        MAP,
        None,
        [
            ("_prompt_token_ids", REQUIRED),
            ("_output_token_ids", array("l")),
            ("_prompt_embeds", None),
            ("_output_embeds", None),
            ("_cumulative_logprob", 0.0),
            ("_prompt_token_ids_tuple", ()),
            ("_num_computed_tokens", 0),
            ("_num_cached_tokens", 0),
            ("_stage", PREFILL),
            ("_cached_all_token_ids", []),
            ("_cached_all_token_embeds", None),
            ("_new_appended_tokens", []),
            ("_mrope_position_delta", None),
        ],
    ),
    "SequenceDataDelta": (
        ARRAY,
        None,
        [
            ("new_output_token_ids", REQUIRED),
            ("new_cumulative_logprob", REQUIRED),
            ("new_num_computed_tokens", REQUIRED),
            ("new_stage", REQUIRED),
        ],
    ),
    "SequenceGroupState": (MAP, None, [("num_steps", 1), ("current_step", 0)]),
    "SequenceGroupMetadata": (
        ARRAY,
        "SequenceGroupMetadata",
        [
            ("request_id", REQUIRED),
            ("is_prompt", REQUIRED),
            ("seq_data", REQUIRED),
            ("sampling_params", REQUIRED),
            ("block_tables", REQUIRED),
            ("do_sample", True),
            ("pooling_params", None),
            ("lora_request", None),
            ("computed_block_nums", None),
            ("state", S.SequenceGroupState(1, 0)),
            ("token_type_ids", None),
            ("multi_modal_data", None),
            ("multi_modal_placeholders", None),
            ("encoder_seq_data", None),
            ("cross_block_table", None),
            ("prompt_adapter_request", None),
            ("token_chunk_size", None),
            ("num_speculative_tokens", None),
        ],
    ),
    "SequenceGroupMetadataDelta": (
        ARRAY,
        "SequenceGroupMetadataDelta",
        [
            ("seq_data_delta", REQUIRED),
            ("request_id", REQUIRED),
            ("block_tables", REQUIRED),
            ("is_prompt", REQUIRED),
            ("do_sample", True),
            ("token_chunk_size", None),
            ("computed_block_nums", None),
            ("state", S.SequenceGroupState(1, 0)),
        ],
    ),
    "ExecuteModelRequest": (
        ARRAY,
        None,
        [
            ("seq_group_metadata_list", REQUIRED),
            ("blocks_to_swap_in", []),
            ("blocks_to_swap_out", []),
            ("blocks_to_copy", []),
            ("virtual_engine", 0),
            ("num_lookahead_slots", 0),
            ("running_queue_size", 0),
            ("previous_hidden_states", None),
            ("num_steps", 1),
            ("spec_step_idx", None),
            ("finished_requests_ids", []),
            ("last_sampled_token_ids", None),
            ("async_callback", None),
        ],
    ),
    "HiddenStates": (
        ARRAY,
        None,
        [
            ("hidden_states", REQUIRED),
            ("seq_group_metadata_list", None),
            ("second_last_token_hidden_states", None),
            ("_seq_ids", []),
        ],
    ),
    "SequenceOutput": (
        ARRAY,
        None,
        [
            ("parent_seq_id", REQUIRED),
            ("output_token", REQUIRED),
            ("logprobs", REQUIRED),
            ("output_embed", None),
        ],
    ),
    "CompletionSequenceGroupOutput": (
        ARRAY,
        None,
        [("samples", REQUIRED), ("prompt_logprobs", REQUIRED), ("step_index", 0)],
    ),
    "PoolingSequenceGroupOutput": (ARRAY, None, [("data", REQUIRED)]),
    "PoolerOutput": (ARRAY, None, [("outputs", REQUIRED)]),
    "SamplingParams": (
        MAP,
        None,
        [
            ("n", 1),
            ("best_of", None),
            ("_real_n", None),
            ("presence_penalty", 0.0),
            ("frequency_penalty", 0.0),
            ("repetition_penalty", 1.0),
            ("temperature", 1.0),
            ("top_p", 1.0),
            ("top_k", 0),
            ("min_p", 0.0),
            ("seed", None),
            ("stop", None),
            ("stop_token_ids", None),
            ("ignore_eos", False),
            ("max_tokens", 16),
            ("min_tokens", 0),
            ("logprobs", None),
            ("prompt_logprobs", None),
            ("detokenize", True),
            ("skip_special_tokens", True),
            ("spaces_between_special_tokens", True),
            ("logits_processors", None),
            ("include_stop_str_in_output", False),
            ("truncate_prompt_tokens", None),
            ("output_kind", S.RequestOutputKind.CUMULATIVE),
            ("output_text_buffer_length", 0),
            ("_all_stop_token_ids", set()),
            ("guided_decoding", None),
            ("logit_bias", None),
            ("allowed_token_ids", None),
            ("extra_args", None),
            ("bad_words", None),
            ("_bad_words_token_ids", None),
        ],
    ),
    "PoolingParams": (
        ARRAY,
        None,
        [
            ("dimensions", None),
            ("use_cross_encoder", False),
            ("additional_data", None),
            ("output_kind", S.RequestOutputKind.FINAL_ONLY),
        ],
    ),
    "LoRARequest": (
        ARRAY,
        None,
        [
            ("lora_name", REQUIRED),
            ("lora_int_id", REQUIRED),
            ("lora_path", ""),
            ("lora_local_path", None),
            ("long_lora_max_len", None),
            ("base_model_name", None),
            ("tensorizer_config_dict", None),
        ],
    ),
    "PromptAdapterRequest": (
        ARRAY,
        None,
        [
            ("prompt_adapter_name", REQUIRED),
            ("prompt_adapter_id", REQUIRED),
            ("prompt_adapter_local_path", REQUIRED),
            ("prompt_adapter_num_virtual_tokens", REQUIRED),
        ],
    ),
}

DATACLASSES: dict[str, list[tuple[str, Any]]] = {
    "Logprob": [("logprob", REQUIRED), ("rank", None), ("decoded_token", None)],
    "RequestMetrics": [
        ("arrival_time", REQUIRED),
        ("last_token_time", REQUIRED),
        ("first_scheduled_time", REQUIRED),
        ("first_token_time", REQUIRED),
        ("time_in_queue", REQUIRED),
        ("finished_time", None),
        ("scheduler_time", None),
        ("model_forward_time", None),
        ("model_execute_time", None),
        ("spec_token_acceptance_counts", None),
    ],
    "GuidedDecodingParams": [
        ("json", None),
        ("regex", None),
        ("choice", None),
        ("grammar", None),
        ("json_object", None),
        ("backend", None),
        ("backend_was_auto", False),
        ("disable_fallback", False),
        ("disable_any_whitespace", False),
        ("disable_additional_properties", False),
        ("whitespace_pattern", None),
        ("structural_tag", None),
    ],
    "PlaceholderRange": [("offset", REQUIRED), ("length", REQUIRED), ("is_embed", None)],
    "IntermediateTensors": [("tensors", REQUIRED), ("kv_connector_output", None)],
    "SequenceGroupBase": [
        ("group_id", REQUIRED),
        ("assembled_seq_group", None),
        ("seq_id_to_index", {}),
        ("to_be_finished", {}),
        ("finished_reqs", {}),
        ("streaming", False),
        ("output_produced", False),
    ],
}

ENUMS = {
    "SequenceStatus": {
        "WAITING": 0,
        "RUNNING": 1,
        "SWAPPED": 2,
        "FINISHED_STOPPED": 3,
        "FINISHED_LENGTH_CAPPED": 4,
        "FINISHED_ABORTED": 5,
        "FINISHED_IGNORED": 6,
    },
    "SequenceStage": {"PREFILL": 1, "DECODE": 2},
    "RequestOutputKind": {"CUMULATIVE": 0, "DELTA": 1, "FINAL_ONLY": 2},
}


def same(actual: list[tuple[str, Any]], expected: list[tuple[str, Any]]) -> None:
    """Equality that also tells False from 0 and 0 from 0.0, as MessagePack does."""
    assert [name for name, _ in actual] == [name for name, _ in expected]
    for (name, is_now), (_, should_be) in zip(actual, expected, strict=True):
        assert (type(is_now), is_now) == (type(should_be), should_be), name


@pytest.mark.parametrize("name", STRUCTS)
def test_struct(name: str) -> None:
    layout, tag, fields = STRUCTS[name]
    cls = getattr(S, name)
    config = cls.__struct_config__
    assert (ARRAY if config.array_like else MAP) == layout
    assert config.tag == tag
    assert config.omit_defaults
    assert not config.forbid_unknown_fields

    def default(field: Any) -> Any:
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return REQUIRED if field.default is msgspec.NODEFAULT else field.default

    actual = [(field.encode_name, default(field)) for field in msgspec.structs.fields(cls)]
    same(actual, fields)


@pytest.mark.parametrize("name", DATACLASSES)
def test_dataclass(name: str) -> None:
    def default(field: Any) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return REQUIRED if field.default is dataclasses.MISSING else field.default

    cls = getattr(S, name)
    actual = [(field.name, default(field)) for field in dataclasses.fields(cls)]
    same(actual, DATACLASSES[name])


@pytest.mark.parametrize("name", ENUMS)
def test_enum(name: str) -> None:
    assert {member.name: member.value for member in getattr(S, name)} == ENUMS[name]


def test_no_type_on_the_wire_is_missing_here() -> None:
    public = {name: getattr(S, name) for name in S.__all__}
    structs = {
        n for n, t in public.items() if isinstance(t, type) and issubclass(t, msgspec.Struct)
    }
    own_fields = {
        n for n, t in public.items() if isinstance(t, type) and "__dataclass_fields__" in vars(t)
    }
    assert structs == set(STRUCTS)
    assert own_fields == set(DATACLASSES)


def test_constants() -> None:
    assert S.VLLM_TOKEN_ID_ARRAY_TYPE == "l"
    assert S.VLLM_INVALID_TOKEN_ID == -1


def test_every_public_name_of_vllms_module_is_here() -> None:
    vllm_sequence = """
        VLLM_TOKEN_ID_ARRAY_TYPE VLLM_INVALID_TOKEN_ID PromptLogprobs SampleLogprobs array_full
        get_all_seq_ids get_all_seq_ids_and_request_ids SequenceStatus SequenceStage SequenceData
        SequenceDataDelta Sequence SequenceGroup SequenceGroupState SequenceGroupBase
        ParallelSampleSequenceGroup SequenceGroupMetadata SequenceGroupMetadataDelta
        ExecuteModelRequest Logprob SequenceOutput SequenceGroupOutput
        CompletionSequenceGroupOutput PoolingSequenceGroupOutput PoolerOutput RequestMetrics
        IntermediateTensors HiddenStates
    """
    assert set(vllm_sequence.split()) <= set(S.__all__)
