"""Rules on the size of a step."""

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.sequence import SequenceGroupMetadata, SequenceGroupMetadataLike
from seqtop.wire import decode_rows
from seqtop.wire.messages import Event, Step


class SchedulingRules(RuleGroup):
    """Rules on steps."""

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks a step against the engine's limits."""
        if isinstance(event, Step):
            yield from self._budget(event)

    @rule("budget", "a step computed more tokens, or ran more sequences, than its limits allow")
    def _budget(self, step: Step) -> Iterator[Finding]:
        info, stats = self.state.info, step.stats
        if info is None:
            return
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens > info.max_num_batched_tokens:
            yield self.of_engine(
                f"{tokens} tokens were computed, the budget is {info.max_num_batched_tokens}"
            )
        num_seqs = decode_rows.num_decodes(step)
        num_seqs += sum(_num_seqs(group) for group in step.execute.seq_group_metadata_list)
        if num_seqs > info.max_num_seqs:
            yield self.of_engine(f"{num_seqs} sequences ran, the limit is {info.max_num_seqs}")


def _num_seqs(group: SequenceGroupMetadataLike) -> int:
    if isinstance(group, SequenceGroupMetadata):
        return len(group.seq_data)
    return len(group.seq_data_delta)
