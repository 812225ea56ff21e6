"""Requests that the engine splits into several and reassembles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from seqtop.sequence.errors import SequenceError
from seqtop.sequence.group import SequenceGroup
from seqtop.sequence.params import RequestOutputKind, SamplingParams

_INFIX: Final = "_parallel_sample_"
_PART: Final = re.compile(rf"(.+){_INFIX}\d+", re.DOTALL)


def parent_request_id(request_id: str) -> str:
    """Returns the id of the whole request for that of a parallel sample; empty for any other."""
    part = _PART.fullmatch(request_id) if _INFIX in request_id else None
    return part[1] if part else ""


@dataclass
class SequenceGroupBase:
    """One request that runs as several sequence groups.

    Attributes:
        group_id: The id of the request.
        assembled_seq_group: The group to report instead of the parts.
        seq_id_to_index: The index of each part, by its request id.
        to_be_finished: The running parts by request id, in order.
        finished_reqs: The finished parts by request id.
        streaming: Whether outputs are reported as they are produced.
        output_produced: Whether the final output has been reported.
    """

    group_id: str
    assembled_seq_group: SequenceGroup | None = None
    seq_id_to_index: dict[str, int] = field(default_factory=dict)
    to_be_finished: dict[str, SequenceGroup] = field(default_factory=dict)
    finished_reqs: dict[str, SequenceGroup] = field(default_factory=dict)
    streaming: bool = False
    output_produced: bool = False

    @staticmethod
    def add_request(request_id: str, engine: Any, params: Any, *args: Any, **kwargs: Any) -> None:
        """Splits a request and adds its parts to the engine."""
        raise NotImplementedError

    def finish_seq(self, seq: SequenceGroup) -> None:
        """Records that a part is finished."""
        del self.to_be_finished[seq.request_id]
        self.finished_reqs[seq.request_id] = seq

    def maybe_assemble_group(self, seq_group: SequenceGroup) -> SequenceGroup | None:
        """Returns the group to report after a step of this part, or None."""
        raise NotImplementedError


class ParallelSampleSequenceGroup(SequenceGroupBase):
    """A request for `n` samples that runs as `n` requests for one."""

    @staticmethod
    def add_request(
        request_id: str, engine: Any, params: SamplingParams, *args: Any, **kwargs: Any
    ) -> None:
        """Adds requests ``<request_id>_parallel_sample_<i>`` with `n` of 1 and seeds `seed` + i.

        Args:
            request_id: The id of the whole request.
            engine: An object with ``_add_processed_request(request_id, params=…, **kwargs)``,
                which returns the new `SequenceGroup`, and a dict ``seq_id_to_seq_group``.
            params: The parameters of the whole request.
            *args: Ignored.
            **kwargs: Passed to the engine.

        Raises:
            SequenceError: The engine returned no group.
        """
        group = ParallelSampleSequenceGroup(request_id)
        for index in range(params.n):
            part_id = f"{request_id}{_INFIX}{index}"
            part_params = params.clone()
            part_params.n = 1
            if part_params.seed is not None:
                part_params.seed += index
            part = engine._add_processed_request(part_id, params=part_params, **kwargs)
            if part is None:
                raise SequenceError(f"the engine made no sequence group of {part_id!r}")
            engine.seq_id_to_seq_group[part_id] = group
            group.seq_id_to_index[part_id] = index
            group.to_be_finished[part_id] = part

        group.assembled_seq_group = SequenceGroup(
            request_id=request_id,
            seqs=[part.seqs[0] for part in group.to_be_finished.values()],
            arrival_time=part.arrival_time,
            sampling_params=params,
            lora_request=part.lora_request,
            pooling_params=part.pooling_params,
            pooled_data=part.pooled_data,
            encoder_seq=part.encoder_seq,
            trace_headers=part.trace_headers,
            prompt_adapter_request=part.prompt_adapter_request,
            priority=part.priority,
        )
        group.streaming = params.output_kind is RequestOutputKind.DELTA

    def maybe_assemble_group(self, seq_group: SequenceGroup) -> SequenceGroup | None:
        """Returns the whole request when it is due, else None.

        If streaming, it is due after each step of the first running part. Otherwise it is due once,
        when the last part finishes, with the best `_real_n` samples only.
        """
        if self.streaming:
            first_running = next(iter(self.to_be_finished), None)
            return self.assembled_seq_group if seq_group.request_id == first_running else None

        last_to_finish = list(self.to_be_finished) == [seq_group.request_id]
        if self.output_produced or not last_to_finish or not seq_group.is_finished():
            return None
        self.output_produced = True
        whole = self.assembled_seq_group
        if whole is None or whole.sampling_params is None:
            raise SequenceError("a parallel sample is assembled when it is added, with parameters")
        best = whole.sampling_params._real_n
        if best is not None:
            by_logprob = sorted(whole.seqs, key=lambda seq: -seq.get_cumulative_logprob())
            whole.seqs = by_logprob[: best or whole.sampling_params.n]
        return whole
