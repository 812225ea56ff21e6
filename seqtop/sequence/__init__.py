"""vLLM's sequence data model: the types that an engine holds, and sends to workers, per sequence.

Names, fields and behaviour are those of `vllm.sequence` 0.9.2, so an engine written for vLLM's
types runs with these. `seqtop.wire.encode` gives every type the same bytes as vLLM. Types that vLLM
defines elsewhere and that occur in messages (sampling parameters, adapters, inputs) are here too.
Nothing here imports torch before there is a tensor.
"""

from seqtop.sequence.adapters import LoRARequest, PromptAdapterRequest
from seqtop.sequence.data import SequenceData, SequenceDataDelta
from seqtop.sequence.errors import SequenceError
from seqtop.sequence.group import SequenceGroup
from seqtop.sequence.hidden_states import HiddenStates
from seqtop.sequence.inputs import (
    EmbedsInputs,
    MultiModalInputs,
    MultiModalKwargs,
    MultiModalPlaceholderDict,
    PlaceholderRange,
    SingletonInputs,
    TokenInputs,
    embeds_inputs,
    token_inputs,
)
from seqtop.sequence.metadata import (
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceGroupState,
    get_all_seq_ids,
    get_all_seq_ids_and_request_ids,
)
from seqtop.sequence.metrics import RequestMetrics
from seqtop.sequence.outputs import (
    CompletionSequenceGroupOutput,
    Logprob,
    PoolerOutput,
    PoolingSequenceGroupOutput,
    PromptLogprobs,
    SampleLogprobs,
    SequenceGroupOutput,
    SequenceOutput,
)
from seqtop.sequence.parallel import ParallelSampleSequenceGroup, SequenceGroupBase
from seqtop.sequence.params import (
    GuidedDecodingParams,
    PoolingParams,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
)
from seqtop.sequence.request import ExecuteModelRequest
from seqtop.sequence.sequence import Sequence
from seqtop.sequence.status import SequenceStage, SequenceStatus
from seqtop.sequence.tensors import IntermediateTensors
from seqtop.sequence.tokens import (
    VLLM_INVALID_TOKEN_ID,
    VLLM_TOKEN_ID_ARRAY_TYPE,
    array_full,
)

__all__ = [
    "VLLM_INVALID_TOKEN_ID",
    "VLLM_TOKEN_ID_ARRAY_TYPE",
    "CompletionSequenceGroupOutput",
    "EmbedsInputs",
    "ExecuteModelRequest",
    "GuidedDecodingParams",
    "HiddenStates",
    "IntermediateTensors",
    "LoRARequest",
    "Logprob",
    "MultiModalInputs",
    "MultiModalKwargs",
    "MultiModalPlaceholderDict",
    "ParallelSampleSequenceGroup",
    "PlaceholderRange",
    "PoolerOutput",
    "PoolingParams",
    "PoolingSequenceGroupOutput",
    "PromptAdapterRequest",
    "PromptLogprobs",
    "RequestMetrics",
    "RequestOutputKind",
    "SampleLogprobs",
    "SamplingParams",
    "SamplingType",
    "Sequence",
    "SequenceData",
    "SequenceDataDelta",
    "SequenceError",
    "SequenceGroup",
    "SequenceGroupBase",
    "SequenceGroupMetadata",
    "SequenceGroupMetadataDelta",
    "SequenceGroupMetadataLike",
    "SequenceGroupOutput",
    "SequenceGroupState",
    "SequenceOutput",
    "SequenceStage",
    "SequenceStatus",
    "SingletonInputs",
    "TokenInputs",
    "array_full",
    "embeds_inputs",
    "get_all_seq_ids",
    "get_all_seq_ids_and_request_ids",
    "token_inputs",
]
