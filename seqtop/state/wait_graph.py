"""The wait graph of one request: what it waits for, who holds that, and what lets it advance.

Every unfinished request of a correct engine has a source of progress: a step, the requests before
it in the queue, those that hold what it needs, or something outside of the scheduler. A request in
a cycle, or one without a source, waits for ever. The picture in the app and the rules of
`seqtop.checks` are made of the same graph.

The graph is as of the last step. A figure of its end and a reason of its scheduling may contradict
each other for a step, so only a graph that stays as it is proves something.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state import holdings
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.sort_key import queue_key
from seqtop.state.wait_causes import OWN_TURN, PASSED_OVER, cause_in_words, describe_reason
from seqtop.text import format as fmt
from seqtop.wire.messages import WaitReason

Source: TypeAlias = Literal[
    "step", "queue", "holders", "budget", "outside", "paused", "cycle", "none", "unknown"
]
"""The source of progress of a request.

`step`: it runs. `queue`: those before it. `holders`: requests that advance hold what it needs.
`budget`: the token budget of the next step. `outside`: the end of something that the scheduler does
not decide, such as a transfer. `paused`: somebody has to resume the scheduler. `cycle`: all that
hold what it needs wait for it. `none`: nothing that is known. `unknown`: the engine gave no
reason."""

SKIPPED_STEPS = 8
"""The steps without a running sequence, all with a part of the budget left, after which it has no
source of progress: engines have several batches in flight, or few blocks for a moment."""
DEADLOCKED_STEPS = 3
"""The same for one that lacks a block when none is available."""
_UNFINISHED = (SequenceStatus.WAITING, SequenceStatus.RUNNING, SequenceStatus.SWAPPED)
_RUNNING = SequenceStatus.RUNNING
_MAX_NAMED = 3


class Holder(msgspec.Struct, frozen=True):
    """A request that holds a part of what another one needs."""

    request_id: str
    amount: int
    """Blocks, or running sequences."""
    num_freed: int
    """The part of `amount` that its end frees: the other blocks are shared."""
    source: Source
    detail: str
    """Its activity in a few words."""
    has_ended: bool = False
    """True if it waits for nothing: its blocks are kept after its end."""


class WaitGraph(msgspec.Struct, frozen=True):
    """The wait of one request."""

    request_id: str
    source: Source
    detail: str = ""
    """Its activity, or the reason of its wait, in a few words."""
    head: WaitGraph | None = None
    """The request before it for which the scheduler gave the reason."""
    reason: WaitReason | None = None
    num_available: int | None = None
    """The blocks that are free or only cached at the end of the step, if it waits for blocks."""
    unit: str = ""
    """The unit of `Holder.amount`: `block` or `sequence`."""
    holders: list[Holder] = []
    """Those that hold what it needs, the largest first."""
    is_unnamed: bool = False
    """True if it waits, and the engine gave no reason for it or for one before it."""

    @property
    def root(self) -> WaitGraph:
        """The request for which all of the queue waits: the head, or else this one."""
        return self.head if self.head is not None else self

    @property
    def is_stuck(self) -> bool:
        """True if nothing that is known lets it advance."""
        return self.root.source in ("cycle", "none") or self.source == "none"


class Head(msgspec.Struct, frozen=True):
    """The head of the queue after the last step: the one for which all behind it wait."""

    request_id: str
    request: RequestState | None
    """`None` if it has ended, or is not known."""


def queue_head(state: EngineData) -> Head | None:
    """Returns the head of the queue; `None` if the last step gave no reason for one."""
    for request_id in state.wait_reason_ids:
        request = state.requests.get(request_id)
        if request is None or request.finish_reason is not None:
            return Head(request_id, None)
        if request.wait_reason is not None and request.wait_reason.cause not in PASSED_OVER:
            return Head(request_id, request)
    return None


def source_of_progress(state: EngineData, request: RequestState, head: Head | None) -> Source:
    """Returns the source of progress of a request, without a look at other requests.

    For the head of the queue, and for a request that waits for blocks or a sequence slot, this is
    `holders`, whoever these are.

    Args:
        state: The state.
        request: An unfinished request of it.
        head: The head of the queue.
    """
    sequences = _unfinished(state, request)
    if not sequences:
        return "outside"  # it has ended, and a KV connector holds its blocks
    running = [sequence for sequence in sequences if sequence.status is _RUNNING]
    if running:
        return _source_of_running(state, running)
    if any(sequence.engine_status not in OWN_TURN for sequence in sequences):
        return "outside"
    reason = request.wait_reason
    if reason is not None:
        match reason.cause:
            case "paused" | "unknown":
                return reason.cause
            case "token_budget":
                return "budget"
            case _:
                return "holders"
    if head is None:
        return "unknown"
    if head.request is None:
        return "none"
    return "none" if _is_before(state, request, head.request) else "queue"


def wait_graph(state: EngineData, request: RequestState) -> WaitGraph:
    """Returns the wait graph of an unfinished request; O(number of holders and their blocks)."""
    head = queue_head(state)
    source = source_of_progress(state, request, head)
    name = request.request_id
    if source == "queue" and head is not None and head.request is not None:
        before = _own(state, head.request, head)
        return WaitGraph(name, source, f"waits behind {head.request_id}", before)
    if source == "none" and head is not None and head.request is None:
        return WaitGraph(name, source, f"waits behind {head.request_id}, which has ended")
    return _own(state, request, head)


def activity(state: EngineData, request: RequestState) -> str:
    """Describes what a request does, or that it has ended, in a few words."""
    if request.finish_reason is not None:
        return f"has ended ({request.finish_reason})"
    head = queue_head(state)
    source = source_of_progress(state, request, head)
    detail = _detail(state, request, source)
    if source == "queue" and head is not None and head.request is not None:
        return f"{detail} behind {head.request_id}, which {_own(state, head.request, head).detail}"
    return detail


def _own(state: EngineData, request: RequestState, head: Head | None) -> WaitGraph:
    """Returns the graph of a request that does not wait behind another."""
    name, reason = request.request_id, request.wait_reason
    source = source_of_progress(state, request, head)
    is_stuck_run = source == "cycle"
    if not is_stuck_run and source != "holders":
        detail = _detail(state, request, source)
        is_unnamed = reason is None and detail.endswith("waits")
        return WaitGraph(name, source, detail, reason=reason, is_unnamed=is_unnamed)
    cause = None if is_stuck_run or reason is None else reason.cause
    is_for_slots = cause in ("seq_limit", "lora_slots")
    holders = _holders(state, request, head, cause)
    available = None if is_for_slots else holdings.num_available_blocks(state)
    if not holders:
        source = "none"
    elif any(holder.source in ("step", "outside", "paused", "budget") for holder in holders):
        source = "holders"
    else:
        source = "cycle"
    if is_stuck_run:
        detail = "runs, and lacks a block"
    else:
        detail = "waits" if reason is None else f"waits: {describe_reason(reason, state.info)}"
    return WaitGraph(
        name,
        source,
        detail,
        reason=reason,
        num_available=available,
        unit="sequence" if is_for_slots else "block",
        holders=holders,
    )


def _unfinished(state: EngineData, request: RequestState) -> list[SequenceState]:
    known = map(state.sequences.get, request.seq_ids)
    return [own for own in known if own is not None and own.status in _UNFINISHED]


def _source_of_running(state: EngineData, running: list[SequenceState]) -> Source:
    """Returns the source of progress of running sequences of one request."""
    if any(sequence.engine_status not in OWN_TURN for sequence in running):
        return "outside"
    num_skipped = state.step - max(sequence.last_step for sequence in running)
    stats, info = state.stats, state.info
    if stats is None or info is None or num_skipped < DEADLOCKED_STEPS:
        return "step"
    if holdings.num_available_blocks(state) == 0 and any(
        _lacks_block(state, own) for own in running
    ):
        return "cycle"
    budget = info.max_num_batched_tokens
    if budget is None or num_skipped < SKIPPED_STEPS:
        return "step"
    left = budget - stats.num_prefill_tokens - stats.num_decode_tokens
    if left < max(stats.num_running, 1):
        return "step"
    # SGLang computes prefills and decodes in separate batches, prefills first.
    decodes = all(own.num_computed_tokens >= own.num_prompt_tokens for own in running)
    return "step" if decodes and not stats.num_decode_tokens else "none"


def _lacks_block(state: EngineData, sequence: SequenceState) -> bool:
    block_size = state.info.block_size if state.info is not None else 0
    if block_size < 1:
        return False
    return sequence.num_computed_tokens >= block_size * len(sequence.block_table)


def _is_before(state: EngineData, request: RequestState, head: RequestState) -> bool:
    """Returns whether a request comes before the head of the queue, whatever is done after ties.

    By the order that the engine gives, and also by priority and arrival.
    """
    if state.info is None or state.info.queue_order == "unknown":
        return False
    by_arrival = request.priority, request.metrics.arrival_time
    return queue_key(state, request) < queue_key(state, head) and by_arrival < (
        head.priority,
        head.metrics.arrival_time,
    )


def _holders(
    state: EngineData, request: RequestState, head: Head | None, cause: str | None
) -> list[Holder]:
    """Returns the other requests that hold what one needs, the largest first."""
    if cause in ("seq_limit", "lora_slots"):
        slots = holdings.amounts(state, cause, request.lora)
        held = {name: (amount, amount) for name, amount in slots.items()}
    else:
        held = holdings.num_freed_blocks(state)
    found = [
        _holder(state, state.requests[name], head, amount, num_freed)
        for name, (amount, num_freed) in held.items()
        if name != request.request_id
    ]
    return sorted(found, key=lambda holder: (-holder.amount, holder.request_id))


def _holder(
    state: EngineData, request: RequestState, head: Head | None, amount: int, num_freed: int
) -> Holder:
    if holdings.has_ended(state, request):
        num_freed = 0  # a KV connector decides when its blocks are free
    source = source_of_progress(state, request, head)
    detail = _detail(state, request, source)
    has_ended = holdings.has_ended(state, request)
    return Holder(request.request_id, amount, num_freed, source, detail, has_ended)


def _detail(state: EngineData, request: RequestState, source: Source) -> str:
    """Describes what a request does, in a few words."""
    sequences = _unfinished(state, request)
    if any(sequence.status is _RUNNING for sequence in sequences):
        sequence = sequences[0]
        num_output = len(sequence.output_token_ids)
        if source == "cycle":
            return "runs, and lacks a block"
        if source == "none":
            return f"runs, in no batch since step {sequence.last_step:,}"
        if not num_output:
            return f"runs: {sequence.num_computed_tokens:,} of {sequence.num_tokens:,} computed"
        params = request.sampling_params
        most = f" of at most {params.max_tokens:,}" if params and params.max_tokens else ""
        return f"runs: {num_output:,}{most} output tokens"
    if not sequences:
        held = holdings.num_blocks(state, request)
        return "has ended, and its blocks are held" if held else "has ended"
    if source == "outside":
        status = next(own.engine_status for own in sequences if own.engine_status not in OWN_TURN)
        return f"waits: {cause_in_words(status).sentence}"
    if request.wait_reason is not None:
        return f"waits: {describe_reason(request.wait_reason, state.info)}"
    swapped = any(sequence.status is SequenceStatus.SWAPPED for sequence in sequences)
    return "swapped out, and waits" if swapped else "waits"


# --- In words


def describe(graph: WaitGraph) -> str:
    """Describes what lets a request advance, or that nothing does, in one or two sentences."""
    root, name = graph.root, graph.root.request_id
    match graph.source if graph.source == "none" else root.source:
        case "step":
            return f"The next step advances {name}."
        case "holders":
            moving = [own for own in root.holders if own.source in ("step", "outside", "budget")]
            names, s = _names(moving), "s" * (len(moving) == 1)
            if root.unit == "block":
                return f"It advances when enough blocks are free; {names} hold{s} some."
            return f"It advances when enough sequences stop running; {names} run{s}."
        case "budget":
            return "Each step has a new token budget."
        case "outside":
            return f"The scheduler does not decide when {name} goes on."
        case "paused":
            return "It advances when the scheduler is resumed."
        case "cycle":
            return f"Nothing advances: all that hold what {name} needs wait themselves. " + (
                unblocking(root)
            )
        case "none":
            return f"Nothing that is known lets {graph.request_id} advance: {orphan(graph)}."
        case _:
            return "The last step gave no reason, so it is not known what it waits for."


def proof(graph: WaitGraph) -> str:
    """Describes a cycle with its figures."""
    num_held = sum(holder.amount for holder in graph.holders)
    missing = graph.reason.num_missing if graph.reason is not None else 0
    need = f"misses {fmt.plural(missing, 'block')}" if missing > 0 else "lacks a block"
    lacks_too = any(holder.source == "cycle" for holder in graph.holders)
    waiting = "that run and lack one, too," if lacks_too else "that wait behind it"
    if any(holder.has_ended for holder in graph.holders):
        is_all = all(holder.has_ended for holder in graph.holders)
        waiting = "that have ended" if is_all else "that have ended or wait behind it"
    return (
        f"{graph.request_id} {need}: {graph.num_available} are available, and requests {waiting}"
        f" hold {num_held} ({fmt.plural(len(graph.holders), 'request')})"
    )


def unblocking(graph: WaitGraph) -> str:
    """Names the request whose abort frees most of what is missing; empty if none frees any."""
    holder = max(graph.holders, key=lambda holder: holder.num_freed, default=None)
    if holder is None or not holder.num_freed:
        return ""
    missing = max(graph.reason.num_missing if graph.reason is not None else 0, 1)
    freed = fmt.plural(holder.num_freed, graph.unit)
    enough = "" if holder.num_freed >= missing else f", of {missing:,} that are missing"
    return f"Aborting {holder.request_id} frees {freed}{enough}."


def orphan(graph: WaitGraph) -> str:
    """Describes the figures that show that a request has no source of progress."""
    if graph.reason is not None:
        available = graph.num_available
        figures = f"; {fmt.plural(available, 'block')} available" if available is not None else ""
        return f"it {graph.detail}; no other request holds any{figures}"
    if graph.is_unnamed:
        return "it waits, and no reason is given for it or for a request before it in the queue"
    return f"it {graph.detail}"


def _names(holders: list[Holder]) -> str:
    names = [holder.request_id for holder in holders[:_MAX_NAMED]]
    more = len(holders) - len(names)
    if more > 0:
        return f"{', '.join(names)} and {more:,} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def tree(graph: WaitGraph, most: int = 12) -> list[str]:
    """Returns the graph as lines of a tree: the request, the head of the queue, and the holders.

    Args:
        graph: The graph.
        most: The most holders to list.
    """
    lines = [f"{graph.request_id}  {graph.detail}".rstrip()]
    indent = ""
    if graph.head is not None:
        lines.append(f"└ {graph.head.request_id}  {graph.head.detail}")
        indent = "  "
    root = graph.root
    if root.num_available is not None:
        # The reason is older: what has ended since then frees blocks.
        missing = root.reason.num_missing if root.reason is not None else 0
        before = f"; {missing:,} too few when it began" if missing > 0 else ""
        blocks = fmt.plural(root.num_available, "block")
        lines.append(f"{indent}├ {blocks} available after the step{before}")
    rows = [
        f"{own.request_id}  {fmt.plural(own.amount, root.unit)}  {own.detail}"
        for own in root.holders[:most]
    ]
    if (more := len(root.holders) - most) > 0:
        held = sum(own.amount for own in root.holders[most:])
        rows.append(f"{fmt.plural(more, 'other request')}  {fmt.plural(held, root.unit)}")
    lines += [f"{indent}{'└' if row is rows[-1] else '├'} {row}" for row in rows]
    return lines
