"""Rules on waits that no turn ends, each with a limit: loads, grammars, adapters, transfers.

A request that waits for something other than its turn is exempt from the rules on the queue, since
the scheduler does not decide when it goes on. So every such wait has a limit of its own. The rules
look at the requests that wait so once in `_SWEEP_SECONDS` of the engine's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from seqtop.checks.finding import Finding
from seqtop.checks.outside_waits import OutsideWaits, Wait, limit_of, sequences_of
from seqtop.checks.rules import RuleGroup, rule
from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, holdings, inversions
from seqtop.state.model import RequestState
from seqtop.state.sort_key import has_priorities
from seqtop.state.wait_causes import cause_in_words
from seqtop.state.wait_graph import queue_head
from seqtop.text.format import plural
from seqtop.wire.messages import Event

_SWEEP_SECONDS = 0.5
_MAX_NAMED = 4
_MAX_EXAMINED = 512
"""Requests that one look examines, at most."""
_RUNNING = SequenceStatus.RUNNING


class LimitRules(RuleGroup):
    """Rules on waits that last longer than their limits.

    Args:
        state: The state of the engine.
        thresholds: The limits.
        outside: The waits for something other than a turn.
    """

    def __init__(self, state: EngineState, thresholds: Thresholds, outside: OutsideWaits) -> None:
        super().__init__(state)
        self._limits = thresholds
        self._outside = outside
        self._slots: dict[str, Wait] = {}
        """Requests that wait for a slot of their adapter."""
        self._urgent: dict[str, Wait] = {}
        """Requests that wait while others of lower priority run."""
        self._reported: set[tuple[str, str]] = set()
        """Incidents that have been reported, by rule and what is waited for."""
        self._repeating: set[int] = set()
        """Sequences whose output has been reported to repeat a token."""
        self._swept = 0.0
        """The time of the last look, epoch seconds."""

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Looks at all that wait once in a while."""
        if not 0 <= self.state.time - self._swept < _SWEEP_SECONDS:
            self._swept = self.state.time
            yield from self._sweep()

    def end(self) -> Iterator[Finding]:
        """Looks at the waits at the end."""
        yield from self._sweep()

    def _sweep(self) -> Iterator[Finding]:
        self._note_slots()
        self._note_urgent()
        yield from self._wait_limit()
        yield from self._blocks_after_end()
        yield from self._priority_wait()
        yield from self._repetition()

    def _still_waiting(self, waits: dict[str, Wait]) -> dict[str, Wait]:
        """Returns those of `waits` whose requests have not run since then."""
        requests = self.state.requests
        return {
            name: wait
            for name, wait in waits.items()
            if (request := requests.get(name)) is not None
            and request.finish_reason is None
            and not any(
                own.status is _RUNNING or SequenceStatus.is_finished(own.status)
                for own in sequences_of(self.state, request)
            )
        }

    # --- Waits for something other than a turn

    def _note_slots(self) -> None:
        """Notes who waits for a slot of its adapter.

        The scheduler may name another reason in a step in which it does not get so far: the wait
        lasts until the request runs.
        """
        requests = self.state.requests
        self._slots = self._still_waiting(self._slots)
        for name in islice(self.state.wait_reason_ids, _MAX_EXAMINED):
            request = requests.get(name)
            reason = None if request is None else request.wait_reason
            if request is None or reason is None or reason.cause != "lora_slots":
                continue
            if name not in self._slots:
                since = request.wait.since
                now = self.state.time
                begin = now if since is None else min(since, now)
                self._slots[name] = Wait("lora_slots", begin, self.state.num_finished)

    @rule(
        "wait-limit", "a request waits for something other than its turn beyond a limit", "warning"
    )
    def _wait_limit(self) -> Iterator[Finding]:
        now, late = self.state.time, dict[str, list[str]]()
        waits = [
            (name, parked, limit_of(parked.status, self._limits))
            for name, parked in self._outside.parked().items()
        ]
        waits += [
            (name, parked, self._limits.adapter_seconds) for name, parked in self._slots.items()
        ]
        for name, parked, limit in waits:
            if now - parked.since >= limit:
                late.setdefault(parked.status, []).append(name)
        yield from self._new_incidents("wait-limit", late, self._wait_limit_message)

    def _wait_limit_message(self, status: str, name: str) -> str:
        parked = (self._slots if status == "lora_slots" else self._outside.parked())[name]
        seconds = self.state.time - parked.since
        served = self.state.num_finished - parked.num_finished
        meanwhile = f"; {plural(served, 'other request')} ended meanwhile" if served else ""
        request = self.state.requests[name]
        if status == "lora_slots":
            info = self.state.info
            most = f" (max_loras {info.max_loras:,})" if info and info.max_loras else ""
            adapter = f" {request.lora}" if request.lora else ""
            return (
                f"it has waited {seconds:.1f} s for a slot of its adapter{adapter}{most}"
                f"{self._adapter_holders(request)}{meanwhile}"
            )
        held = holdings.num_blocks(self.state, request)
        holds = f"; it holds {plural(held, 'block')} meanwhile" if held else ""
        cause = cause_in_words(status)
        return (
            f"for {seconds:.1f} s, {cause.sentence} ({status}){holds}{self._head(held)}{meanwhile}"
        )

    def _adapter_holders(self, request: RequestState) -> str:
        """Names the adapters in use, and requests that use them."""
        users = holdings.adapters(self.state, than=request.lora)
        named = [f"{lora} ({_names(names)})" for lora, names in islice(users.items(), _MAX_NAMED)]
        return f", which {' and '.join(named)} hold" if named else ""

    def _head(self, num_held: int) -> str:
        """Names the head of the queue, if it waits for blocks and some are held."""
        head = queue_head(self.state)
        request = head.request if head is not None else None
        if not num_held or request is None or request.wait_reason is None:
            return ""
        if request.wait_reason.cause != "no_blocks":
            return ""
        missing = request.wait_reason.num_missing
        misses = f" misses {plural(missing, 'block')}" if missing else " waits for blocks"
        return f", and {request.request_id}{misses}"

    # --- Blocks of requests that have ended

    @rule(
        "blocks-after-end",
        "a request has ended, and keeps its blocks longer than a limit",
        "warning",
    )
    def _blocks_after_end(self) -> Iterator[Finding]:
        now, limit = self.state.time, self._limits.transfer_seconds
        late = [name for name, ended in self._outside.ended().items() if now - ended.since >= limit]
        by_cause = {"": late} if late else {}
        yield from self._new_incidents("blocks-after-end", by_cause, self._blocks_after_end_message)

    def _blocks_after_end_message(self, _: str, name: str) -> str:
        ended = self._outside.ended()
        requests = self.state.requests
        held = {own: holdings.num_blocks(self.state, requests[own]) for own in ended}
        own, total = held[name], sum(held.values())
        info = self.state.info
        pool = 0 if info is None else info.num_gpu_blocks - info.num_reserved_blocks
        seconds = self.state.time - ended[name].since
        others = len(ended) - 1
        all_ = (
            f"; {plural(len(ended), 'ended request')} ({_names(list(ended))}) hold"
            f" {total:,} of {plural(pool, 'block')}"
            if others
            else f" of {pool:,}"
        )
        available = holdings.num_available_blocks(self.state)
        left = "" if available is None else f", {available:,} are available"
        return (
            f"it ended {seconds:.1f} s ago, and still holds {plural(own, 'block')}{all_}{left}"
            f"{self._head(total)}"
        )

    # --- Priorities

    def _note_urgent(self) -> None:
        """Notes the head of the queue, if it waits for what requests of lower priority hold."""
        info, head = self.state.info, queue_head(self.state)
        request = head.request if head is not None else None
        reason = None if request is None else request.wait_reason
        self._urgent = self._still_waiting(self._urgent)
        if info is None or not has_priorities(info) or request is None or reason is None:
            return
        if reason.cause not in inversions.CAUSES:
            return
        if request.request_id not in self._urgent and inversions.less_urgent(self.state, request):
            now = self.state.time
            self._urgent[request.request_id] = Wait(reason.cause, now, self.state.num_finished)

    @rule(
        "priority-wait",
        "a request waits for what requests of lower priority hold, longer than a limit",
        "warning",
    )
    def _priority_wait(self) -> Iterator[Finding]:
        now, limit = self.state.time, self._limits.priority_seconds
        for name, urgent in self._urgent.items():
            if now - urgent.since < limit or ("priority-wait", name) in self._reported:
                continue
            request = self.state.requests[name]
            others = inversions.less_urgent(self.state, request)
            if not others:
                continue
            self._reported.add(("priority-wait", name))
            priorities = sorted({other.priority for other in others})
            which = f"priority {priorities[0]}" if len(priorities) == 1 else "lower priorities"
            yield self.of_engine(
                f"its priority is {request.priority}, and it has waited {now - urgent.since:.1f} s"
                f" ({cause_in_words(urgent.status).label}) while {plural(len(others), 'request')}"
                f" of {which} run{'s' if len(others) == 1 else ''}"
                f" ({_names([other.request_id for other in others])}); the lowest number is first",
                request_id=name,
            )

    # --- Outputs

    @rule("repetition", "an output repeats one token again and again", "warning")
    def _repetition(self) -> Iterator[Finding]:
        info, most = self.state.info, int(self._limits.repeated_tokens)
        if info is None or info.redacted:
            return
        for sequence in self.state.sequences.values():
            output = sequence.output_token_ids
            if len(output) < most or sequence.seq_id in self._repeating:
                continue
            last = output[-1]
            if output[-most] != last or output[-most // 2] != last:
                continue
            if all(token == last for token in output[-most:]):
                self._repeating.add(sequence.seq_id)
                yield self.of_sequence(
                    sequence,
                    f"the last {most:,} of its {plural(len(output), 'output token')} are all"
                    f" token {last}",
                )

    def _new_incidents(
        self,
        name: str,
        late: dict[str, list[str]],
        message: Callable[[str, str], str],
    ) -> Iterator[Finding]:
        """Yields a finding for each cause for which requests have begun to be late."""
        for cause, requests in late.items():
            if (name, cause) in self._reported:
                continue
            self._reported.add((name, cause))
            first, others = requests[0], len(requests) - 1
            more = f" (and so it is for {plural(others, 'other request')})" if others else ""
            yield self.of_engine(f"{message(cause, first)}{more}", request_id=first)
        over = {own for own in self._reported if own[0] == name and own[1] not in late}
        self._reported -= over


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more:,} more" if more > 0 else "")
