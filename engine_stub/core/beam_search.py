"""Beam search: continues only the likeliest outputs so far.

The beams of a request are sequences of one group, forked from each other and sharing blocks. A
step gives each beam's likeliest next tokens (`SequenceOutput`, with the beam as `parent_seq_id`),
ordered by the log probability of the whole output. From these, `BeamSearch` chooses the beams that
continue, those that have ended, and those to remove.

The algorithm is that of `transformers`' ``generate(num_beams=…)``, so that its outputs are the
same: the score of an ended output is ``cumulative_logprob / length ** length_penalty``, where the
length includes the end-of-sequence token; only the `beam_width` best continuations may end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.step_record import SequenceRecord
from seqtop.sequence import SamplingParams, Sequence, SequenceGroup, SequenceOutput, SequenceStatus
from seqtop.sequence.errors import ParameterError

MAX_LENGTH_PENALTY = 10.0
"""The largest `length_penalty`, and negated the smallest. The score of any length stays finite."""


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a beam search; the names are vLLM's where it has them.

    Attributes:
        beam_width: The number of beams that continue at each step, and of outputs in the result.
        max_tokens: The longest output.
        ignore_eos: Whether outputs continue after the end-of-sequence token.
        temperature: Divides the logits before anything else; 0 means 1.
        length_penalty: Above 0 favours long outputs, below 0 short ones; at most
            `MAX_LENGTH_PENALTY` in magnitude.
        early_stopping: The condition that ends the search before `max_tokens`. True: `beam_width`
            outputs have ended. False: also, the best beam, at its present length, scores no better
            than the worst of them. "never": also, it could not score better at its longest.

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
            raise ParameterError(
                "beam_width", f"beam_width must be at least 1, got {self.beam_width}"
            )
        if not abs(self.length_penalty) <= MAX_LENGTH_PENALTY:  # also of NaN
            raise ParameterError(
                "length_penalty",
                f"length_penalty must be from -{MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g},"
                f" got {self.length_penalty}",
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ParameterError(
                "temperature", f"temperature must be finite and at least 0, got {self.temperature}"
            )
        if self.early_stopping not in (True, False, "never"):
            raise ParameterError(
                "early_stopping",
                f'early_stopping must be true, false or "never", got {self.early_stopping!r}',
            )

    def as_sampling_params(self) -> SamplingParams:
        """Returns the form for workers and viewers; `extra_args` has what vLLM has no field for."""
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


def is_beam_search(params: SamplingParams | None) -> bool:
    """Tells whether parameters are those of a beam search."""
    return params is not None and "beam_width" in (params.extra_args or ())


def beam_search_params(params: SamplingParams | None) -> BeamSearchParams | None:
    """Inverts `BeamSearchParams.as_sampling_params`; None for a request that samples."""
    if params is None or not is_beam_search(params):
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
    """Returns the most sequences of a group that run at once; for a search, its beam width."""
    beam = beam_search_params(seq_group.sampling_params)
    return beam.beam_width if beam else seq_group.get_max_num_running_seqs()


def num_candidates(params: SamplingParams, beam_width: int) -> int:
    """Returns the number of candidates of a step, so that at least `beam_width` do not end."""
    num_stops = len(params.stop_token_ids or ()) + (not params.ignore_eos)
    return beam_width * (1 + max(num_stops, 1))


class BlockAllocator(Protocol):
    """The block operations of a scheduler that a search uses."""

    def fork_seq(self, parent: Sequence, child: Sequence) -> None:
        """Makes a forked sequence share its parent's blocks."""
        ...

    def free_seq(self, seq: Sequence) -> None:
        """Frees the blocks of a sequence."""
        ...


@dataclass(frozen=True, slots=True)
class _Choice:
    """The result of choosing beams in a step.

    Attributes:
        continuing: The beams of the next step, best first; none if the search is over.
        ended: The best outputs so far, best first: sequences that ended before, and samples that
            end one now.
    """

    continuing: list[SequenceOutput]
    ended: list[Sequence | SequenceOutput]


class BeamSearch:
    """Advances beam searches by a step.

    Args:
        blocks: Shares and frees the beams' blocks.
        seq_ids: Ids for forked sequences.
        append: Appends samples to a sequence of a group, and finishes it if it ends with them.
        max_model_len: The most tokens of a sequence, prompt included.
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
        """Forks, extends, ends and removes a group's beams.

        Afterwards the group holds the continuing beams and then the best outputs that have ended,
        both best first.

        Args:
            seq_group: The group of the search.
            samples: A step's continuations, likeliest first; none after a chunk of the prompt.
        """
        if not samples:
            return [self._append(seq_group, seq, []) for seq in unfinished_seqs(seq_group)]
        choice = self._choose(seq_group, samples)
        made: dict[int, Sequence] = {}
        try:
            return self._advance(seq_group, choice, made)
        except Exception:
            # The group does not contain its new forks yet, so that nobody else frees their blocks.
            for seq in made.values():
                self._blocks.free_seq(seq)
            raise

    def _advance(
        self, seq_group: SequenceGroup, choice: _Choice, made: dict[int, Sequence]
    ) -> list[SequenceRecord]:
        """Carries out a choice.

        Args:
            seq_group: The group of the search.
            choice: The beams that continue and end.
            made: Filled with the sequence of each sample, by the sample's `id`.
        """
        ending = [output for output in choice.ended if isinstance(output, SequenceOutput)]
        # A sequence takes its best continuation itself; forks of it take the others.
        best_of_parent: dict[int, SequenceOutput] = {}
        for sample in (*choice.continuing, *ending):
            best_of_parent.setdefault(sample.parent_seq_id, sample)
        updates: list[SequenceRecord] = []
        for sample in (*choice.continuing, *ending):
            parent = seq_group.seqs_dict[sample.parent_seq_id]
            if best_of_parent[parent.seq_id] is not sample:
                made[id(sample)] = child = parent.fork(next(self._seq_ids))
                if sample in choice.continuing:
                    self._blocks.fork_seq(parent, child)
                updates.append(self._append(seq_group, child, [sample]))
                updates[-1] = msgspec.structs.replace(updates[-1], parent_seq_id=parent.seq_id)
        for seq_id, sample in best_of_parent.items():
            made[id(sample)] = seq = seq_group.seqs_dict[seq_id]
            updates.append(self._append(seq_group, seq, [sample]))
            if seq.is_finished():
                self._blocks.free_seq(seq)

        continuing = [made[id(sample)] for sample in choice.continuing]
        ended = [
            made[id(output)] if isinstance(output, SequenceOutput) else output
            for output in choice.ended
        ]
        remaining = {seq.seq_id for seq in (*continuing, *ended)}
        updates += [
            self._remove(seq_group, seq) for seq in seq_group.seqs if seq.seq_id not in remaining
        ]
        replace_seqs(seq_group, [*continuing, *ended])
        return updates

    def _choose(self, seq_group: SequenceGroup, samples: list[SequenceOutput]) -> _Choice:
        params = seq_group.sampling_params
        beam = beam_search_params(params)
        assert params is not None
        assert beam is not None
        length = unfinished_seqs(seq_group)[0].get_output_len() + 1

        def score(cumulative_logprob: float, length: int) -> float:
            return cumulative_logprob / float(length**beam.length_penalty)

        def total(sample: SequenceOutput) -> float:
            parent = seq_group.seqs_dict[sample.parent_seq_id]
            logprob = sample.logprobs[sample.output_token].logprob
            return parent.get_cumulative_logprob() + logprob

        ends = [self._ends(seq_group, sample, params) for sample in samples]
        continuing = [sample for sample, end in zip(samples, ends, strict=True) if not end]
        scored: list[tuple[float, Sequence | SequenceOutput]] = [
            (score(seq.get_cumulative_logprob(), seq.get_output_len()), seq)
            for seq in seq_group.get_finished_seqs()
        ]
        # Only the best may end; the others are there to continue with.
        for sample, end in list(zip(samples, ends, strict=True))[: beam.beam_width]:
            if end:
                scored.append((score(total(sample), length), sample))
        scored = sorted(scored, key=lambda entry: -entry[0])[: beam.beam_width]
        if continuing and len(scored) == beam.beam_width:
            longest = length
            if beam.early_stopping == "never" and beam.length_penalty > 0:
                longest = (
                    self._max_len(seq_group, params)
                    - unfinished_seqs(seq_group)[0].get_prompt_len()
                )
            worst, _ = scored[-1]
            if beam.early_stopping is True or score(total(continuing[0]), longest) <= worst:
                continuing = []
        return _Choice(continuing[: beam.beam_width], [candidate for _, candidate in scored])

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

    def _remove(self, seq_group: SequenceGroup, seq: Sequence) -> SequenceRecord:
        """Removes a beam, or an ended output, that better ones have replaced."""
        if not seq.is_finished():
            seq.status = SequenceStatus.FINISHED_ABORTED
            self._blocks.free_seq(seq)
        return SequenceRecord(seq_group.request_id, seq, [], [], "", is_removed=True)


def replace_seqs(seq_group: SequenceGroup, seqs: list[Sequence]) -> None:
    """Replaces the sequences of a group; the first one becomes its `first_seq`."""
    seq_group.seqs = seqs
    seq_group.first_seq = seqs[0]
    seq_group.is_single_seq = len(seqs) == 1
    seq_group.seqs_dict = {seq.seq_id: seq for seq in seqs}
