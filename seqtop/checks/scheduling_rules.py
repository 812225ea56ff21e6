"""Rules on the size of a step."""

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.wire.batch import members
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
        num_seqs = sum(1 for _ in members(step))
        if num_seqs > info.max_num_seqs:
            yield self.of_engine(f"{num_seqs} sequences ran, the limit is {info.max_num_seqs}")
