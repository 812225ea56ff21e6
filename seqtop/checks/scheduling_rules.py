"""Rules on the size of a step, and on whom it preempts."""

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.state.sort_key import has_priorities
from seqtop.wire.batch import num_lookahead_slots
from seqtop.wire.messages import Event, Step


class SchedulingRules(RuleGroup):
    """Rules on steps."""

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks a step against the engine's limits, and its preemptions."""
        if isinstance(event, Step):
            yield from self._budget(event)
            yield from self._token_sum(event)
            yield from self._inversion(event)

    @rule("budget", "a step computed more tokens, or ran more sequences, than its limits allow")
    def _budget(self, step: Step) -> Iterator[Finding]:
        info, stats, num_seqs = self.state.info, step.stats, len(self.members)
        if info is None:
            return
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        budget = info.max_num_batched_tokens
        if budget is not None and tokens > budget:
            yield self.of_engine(f"{tokens} tokens were computed, the budget is {budget}")
        if num_seqs > info.max_num_seqs:
            yield self.of_engine(f"{num_seqs} sequences ran, the limit is {info.max_num_seqs}")

    @rule("token-sum", "the tokens of the sequences in a step are not those that it computed")
    def _token_sum(self, step: Step) -> Iterator[Finding]:
        """Compares the sum over the batch with the step's figures.

        Tokens that were computed and dropped are those of rejected drafts, and those of further
        iterations after the end of a sequence.
        """
        if not self.members:
            return
        num_slots = num_lookahead_slots(step)
        least = most = 0
        for member in self.members:
            num_tokens, update = member.num_chunk_tokens, member.update
            if member.is_prompt or update is None:
                num_new = num_drafted = 0
            else:
                num_new = len(update.new_token_ids)
                num_drafted = max(update.num_draft_tokens or 0, num_slots)
            least += max(num_tokens, num_new)
            most += max(num_tokens + num_drafted, num_new)
        computed = step.stats.num_prefill_tokens + step.stats.num_decode_tokens
        if not least <= computed <= most:
            range_ = f"{least}" if least == most else f"{least} to {most}"
            yield self.of_engine(
                f"{computed} tokens were computed, those of its {len(self.members)} sequences are"
                f" {range_}"
            )

    @rule("priority-inversion", "a request is preempted for one of lower priority")
    def _inversion(self, step: Step) -> Iterator[Finding]:
        info, requests = self.state.info, self.state.requests
        if info is None or not has_priorities(info):
            return
        for preemption in step.preemptions:
            preempted = requests.get(preemption.request_id)
            served = requests.get(preemption.for_request_id or "")
            if preempted is None or served is None or preempted.priority >= served.priority:
                continue
            yield self.of_engine(
                f"its priority is {preempted.priority}, that of {served.request_id}, which got its"
                f" blocks, is {served.priority}; the lowest number is first",
                request_id=preempted.request_id,
            )
