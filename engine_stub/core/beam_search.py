"""Beam search: of all continuations of a prompt, keep the few that are likeliest so far.

The beams of a request are sequences of one group, forked from each other and sharing blocks. A
step gives each beam's likeliest next tokens (`SequenceOutput`, with the beam as `parent_seq_id`),
ordered by the log probability of the whole output; `BeamSearch` decides from them which beams go
on, which have ended and which are dropped.

The search is that of `transformers`' ``generate(num_beams=…)``, so that its outputs are the same:
an ended output is scored by ``cumulative_logprob / length ** length_penalty``, its end-of-sequence
token counted in the length; only the `beam_width` best continuations of a step may end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from engine_stub.core.groups import replace_seqs, unfinished
from engine_stub.step_record import SequenceRecord
from seqtop.sequence import SamplingParams, Sequence, SequenceGroup, SequenceOutput, SequenceStatus


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the likeliest output; names as in vLLM where it has them.

    Attributes:
        beam_width: How many beams go on at each step, and how many outputs the result holds.
        max_tokens: The longest output.
        ignore_eos: Whether outputs go on after the end-of-sequence token.
        temperature: Divides the logits before anything else; 0 leaves them alone, like 1.
        length_penalty: Above 0 favours long outputs, below 0 short ones.
        early_stopping: When the search ends before `max_tokens`, once `beam_width` outputs have
            ended: if True, then; if False, when the best beam scores no better, at the length it
            has, than the worst of them; if "never", when it could score no better at its longest.

    Raises:
        ValueError: A value is out of range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        if self.beam_width < 1:
            raise ValueError(f"beam_width must be at least 1, got {self.beam_width}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(
                f'early_stopping must be true, false or "never", got {self.early_stopping!r}'
            )

    def as_sampling_params(self) -> SamplingParams:
        """The form in which workers and viewers get it: what vLLM has no field for is extra."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            extra_args={
                "beam_width": self.beam_width,
                "length_penalty": self.length_penalty,
                "early_stopping": self.early_stopping,
            },
        )


def asks_for_beams(params: SamplingParams | None) -> bool:
    """Whether parameters have the form of a search's."""
    return params is not None and "beam_width" in (params.extra_args or ())


def beam_search_params(params: SamplingParams | None) -> BeamSearchParams | None:
    """What `BeamSearchParams.as_sampling_params` was called on; None for a request that samples."""
    if params is None or not asks_for_beams(params):
        return None
    extra: dict[str, Any] = params.extra_args or {}
    assert params.max_tokens is not None
    return BeamSearchParams(
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        **extra,
    )


def max_num_running_seqs(seq_group: SequenceGroup) -> int:
    """How many sequences of a group may run at once; a search has a place for each beam."""
    beam = beam_search_params(seq_group.sampling_params)
    return beam.beam_width if beam else seq_group.get_max_num_running_seqs()


def num_candidates(params: SamplingParams, beam_width: int) -> int:
    """Continuations to look at in a step: enough for `beam_width` of them not to end."""
    num_stops = len(params.stop_token_ids or ()) + (not params.ignore_eos)
    return beam_width * (1 + max(num_stops, 1))


class BlockAllocator(Protocol):
    """What a search needs of a scheduler."""

    def fork_seq(self, parent: Sequence, child: Sequence) -> None: ...
    def free_seq(self, seq: Sequence) -> None: ...


@dataclass(frozen=True, slots=True)
class _Choice:
    """What becomes of a search in a step.

    Attributes:
        going_on: The beams of the next step, best first; none if the search is over.
        ended: The best outputs so far, best first: sequences that ended before, and samples with
            which one ends now.
    """

    going_on: list[SequenceOutput]
    ended: list[Sequence | SequenceOutput]


class BeamSearch:
    """Moves searches on by a step.

    Args:
        blocks: Shares and frees the beams' blocks.
        seq_ids: Ids for forks.
        append: Appends samples to a sequence of a group and finishes it if it ends with them.
        max_model_len: The most tokens a sequence may have, prompt included.
    """

    def __init__(
        self,
        blocks: BlockAllocator,
        seq_ids: Iterator[int],
        append: Callable[[SequenceGroup, Sequence, list[SequenceOutput]], SequenceRecord],
        max_model_len: int,
    ) -> None:
        self._blocks = blocks
        self._seq_ids = seq_ids
        self._append = append
        self._max_model_len = max_model_len

    def process(
        self, seq_group: SequenceGroup, samples: list[SequenceOutput]
    ) -> list[SequenceRecord]:
        """Fork, extend, end and drop a group's beams.

        Afterwards the group holds the beams that go on and then the best outputs that have ended,
        both best first.

        Args:
            samples: A step's continuations, likeliest first; none after a part of the prompt.
        """
        if not samples:
            return [self._append(seq_group, seq, []) for seq in unfinished(seq_group)]
        choice = self._choose(seq_group, samples)
        ending = [each for each in choice.ended if isinstance(each, SequenceOutput)]
        # A sequence goes on as its best continuation; forks of it make the others.
        heirs: dict[int, SequenceOutput] = {}
        for sample in (*choice.going_on, *ending):
            heirs.setdefault(sample.parent_seq_id, sample)
        made: dict[int, Sequence] = {}
        updates: list[SequenceRecord] = []
        for sample in (*choice.going_on, *ending):
            parent = seq_group.seqs_dict[sample.parent_seq_id]
            if heirs[parent.seq_id] is not sample:
                made[id(sample)] = child = parent.fork(next(self._seq_ids))
                if sample in choice.going_on:
                    self._blocks.fork_seq(parent, child)
                updates.append(self._append(seq_group, child, [sample]))
                updates[-1] = msgspec.structs.replace(updates[-1], parent_seq_id=parent.seq_id)
        for seq_id, sample in heirs.items():
            made[id(sample)] = seq = seq_group.seqs_dict[seq_id]
            updates.append(self._append(seq_group, seq, [sample]))
            if seq.is_finished():
                self._blocks.free_seq(seq)

        going_on = [made[id(sample)] for sample in choice.going_on]
        ended = [
            made[id(each)] if isinstance(each, SequenceOutput) else each for each in choice.ended
        ]
        kept = {seq.seq_id for seq in (*going_on, *ended)}
        updates += [self._drop(seq_group, seq) for seq in seq_group.seqs if seq.seq_id not in kept]
        replace_seqs(seq_group, [*going_on, *ended])
        return updates

    def _choose(self, seq_group: SequenceGroup, samples: list[SequenceOutput]) -> _Choice:
        params = seq_group.sampling_params
        beam = beam_search_params(params)
        assert params is not None
        assert beam is not None
        length = unfinished(seq_group)[0].get_output_len() + 1

        def score(cumulative_logprob: float, length: int) -> float:
            return cumulative_logprob / float(length**beam.length_penalty)

        def total(sample: SequenceOutput) -> float:
            parent = seq_group.seqs_dict[sample.parent_seq_id]
            logprob = sample.logprobs[sample.output_token].logprob
            return parent.get_cumulative_logprob() + logprob

        ends = [self._ends(seq_group, sample, params) for sample in samples]
        going_on = [sample for sample, end in zip(samples, ends, strict=True) if not end]
        scored: list[tuple[float, Sequence | SequenceOutput]] = [
            (score(seq.get_cumulative_logprob(), seq.get_output_len()), seq)
            for seq in seq_group.get_finished_seqs()
        ]
        # Continuations beyond the best are there to go on with, in case that those end.
        for sample, end in list(zip(samples, ends, strict=True))[: beam.beam_width]:
            if end:
                scored.append((score(total(sample), length), sample))
        scored = sorted(scored, key=lambda each: -each[0])[: beam.beam_width]
        if going_on and len(scored) == beam.beam_width:
            longest = length
            if beam.early_stopping == "never" and beam.length_penalty > 0:
                longest = (
                    self._max_len(seq_group, params) - unfinished(seq_group)[0].get_prompt_len()
                )
            worst, _ = scored[-1]
            if beam.early_stopping is True or score(total(going_on[0]), longest) <= worst:
                going_on = []
        return _Choice(going_on[: beam.beam_width], [each for _, each in scored])

    def _ends(
        self, seq_group: SequenceGroup, sample: SequenceOutput, params: SamplingParams
    ) -> bool:
        seq = seq_group.seqs_dict[sample.parent_seq_id]
        return (
            (sample.output_token == seq.eos_token_id and not params.ignore_eos)
            or sample.output_token in (params.stop_token_ids or ())
            or seq.get_len() + 1 >= self._max_len(seq_group, params)
        )

    def _max_len(self, seq_group: SequenceGroup, params: SamplingParams) -> int:
        assert params.max_tokens is not None
        return min(seq_group.first_seq.get_prompt_len() + params.max_tokens, self._max_model_len)

    def _drop(self, seq_group: SequenceGroup, seq: Sequence) -> SequenceRecord:
        """Go on without a beam, or an output, that better ones have taken the place of."""
        if not seq.is_finished():
            seq.status = SequenceStatus.FINISHED_ABORTED
            self._blocks.free_seq(seq)
        return SequenceRecord(seq_group.request_id, seq, [], [], "", is_removed=True)
