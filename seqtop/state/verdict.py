"""The verdict on an engine in one sentence: what limits it, for how much of the waiting, and who.

Every part of the sentence is measured: the seconds that requests waited by the cause that the
scheduler gave, the largest holder of what they waited for, and shares of steps' time and tokens.
Where nothing waits and nothing stands out, the sentence says that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from seqtop.state import holdings, inversions
from seqtop.state.limits import FIRST_STEPS, last_minute, sums_at
from seqtop.state.model import EngineData, RequestState
from seqtop.state.not_available import REQUESTS
from seqtop.state.resources import full_resources, is_encoder_cache_full
from seqtop.state.step_costs import elapsed
from seqtop.state.wait_causes import CAUSES, OWN_TURN, cause_in_words
from seqtop.state.waits import WAITED, waiting_by_cause
from seqtop.text import format as fmt
from seqtop.wire.messages import EngineInfo

_LEAST_WAITING = 0.02
"""The mean number of waiting requests from which on waiting is worth a word."""
_LEAST_SHARE = 0.2
"""The share of a waste from which on it is named."""
_LEAST_RATIO = 1.3
"""The ratio of two mean times from which on one counts as longer."""
_LEAST_STEPS = 20
"""Steps that a mean time needs."""
_LEAST_HELD = 0.2
"""The share of the pool from which on its holder is named alone."""
_NEAR = 0.9
"""The part of the largest amount from which on another one counts as about equal."""
_MAX_NOTES = 2


class Waste(NamedTuple):
    """Work or time that is lost, and its share."""

    key: str
    share: float
    text: str


class EngineVerdict(msgspec.Struct):
    """The limit of an engine in a sentence, and its parts."""

    sentence: str
    cause: str | None = None
    """The `WaitCause` or the engine's own status for which requests waited most, or the key of the
    largest waste; `None` if nothing limits it."""
    share: float | None = None
    """The part of all waiting that the cause accounts for; of a waste, its own share."""
    seconds: float = 0.0
    """The length of the time that is judged."""
    waited: float = 0.0
    """The seconds that all requests waited together."""
    request_id: str | None = None
    """The request behind it, if one stands out."""
    setting: str | None = None
    """The setting behind it, named as in vLLM."""
    notes: list[str] = []
    """Wastes beside it, the largest first."""
    limit: str = ""
    """The beginning of the sentence: the limit alone."""
    culprit: str = ""
    """The part of the sentence about a request."""

    def forms(self) -> list[str]:
        """Returns the sentence and shorter forms of it, the longest first."""
        if self.share is None or not self.limit:
            return [form for form in (self.sentence, *self.notes, self.limit) if form]
        whole = f"{self.limit}: {fmt.percent(self.share)} of all waiting"
        with_culprit = f"{whole}; {self.culprit}" if self.culprit else whole
        return [self.sentence, with_culprit, whole, self.limit]


def of_last_minute(state: EngineData) -> EngineVerdict:
    """Returns what limited the engine in the last minute."""
    seconds, sums = last_minute(state)
    return _verdict(state, seconds, sums, "in the last minute")


def beside(verdict: EngineVerdict, imbalance: str) -> EngineVerdict:
    """Returns the verdict on an engine that is full while another one has room, which is why."""
    first, _, rest = verdict.sentence.partition("; ")
    sentence = "; ".join(filter(None, (first, imbalance, rest)))
    return msgspec.structs.replace(verdict, sentence=sentence, culprit=imbalance)


def of_whole(state: EngineData) -> EngineVerdict:
    """Returns what limited the engine since the first event that was observed."""
    seconds = max(state.time - state.limits.since, 0.0) if state.limits.since > 0 else 0.0
    return _verdict(state, seconds, sums_at(state, state.time), "in the whole run", is_whole=True)


def _verdict(
    state: EngineData,
    seconds: float,
    sums: Mapping[str, float],
    when: str,
    *,
    is_whole: bool = False,
) -> EngineVerdict:
    if state.info is not None and REQUESTS in state.info.not_available:
        return EngineVerdict("nothing is known: this engine cannot be observed")
    if seconds <= 0 or not sums:
        return EngineVerdict("nothing to judge yet: no step has ended")
    by_cause = {
        key.removeprefix(WAITED): value
        for key, value in sums.items()
        if key.startswith(WAITED) and value > 0
    }
    waited = sum(by_cause.values())
    wastes = sorted(_wastes(state, sums), key=lambda waste: -waste.share)
    # Clocks of hostile messages may be infinite, or no numbers.
    is_known = bool(by_cause) and math.isfinite(waited)
    if not (is_known and waited >= _LEAST_WAITING * seconds):
        return _without_waiting(wastes, seconds, waited, when)
    largest = max(by_cause.values())
    # Of two that are about equal, that of the scheduler: it is the result of the other one.
    near = [name for name in by_cause if by_cause[name] >= _NEAR * largest]
    cause = max(near, key=lambda name: (name in CAUSES, by_cause[name]))
    share = by_cause[cause] / waited
    start = max(state.time, state.limits.until) - seconds
    holder = _culprit_since(state, cause, start)
    if is_whole and not holder.text:
        holder = _waited_for(state)
    name = _name(state, cause)
    all_ = f"{fmt.percent(share)} of all waiting {when}"
    for other in sorted(by_cause, key=lambda other: -by_cause[other]):
        if other != cause and by_cause[other] >= _LEAST_SHARE * waited:
            all_ += f", {cause_in_words(other).label} {fmt.percent(by_cause[other] / waited)}"
    notes = [waste.text for waste in wastes[:_MAX_NOTES]]
    known = CAUSES.get(cause)
    return EngineVerdict(
        "; ".join(filter(None, (f"limited by {name}: {all_}", holder.text, *notes))),
        cause=cause,
        share=share,
        seconds=seconds,
        waited=waited,
        request_id=holder.request_id,
        setting=(known.setting or None) if known is not None else None,
        notes=notes,
        limit=f"limited by {name}",
        culprit=holder.text,
    )


def _name(state: EngineData, cause: str) -> str:
    """Returns a cause in a few words, with the value of its setting."""
    if cause == "unknown" and is_encoder_cache_full(state):
        return "the encoder cache"
    known = cause_in_words(cause)
    if not known.noun:
        return f"{known.label} ({cause})"
    limit = known.limit(state.info) if cause != "no_blocks" else None
    return known.noun + (f" ({limit:,})" if limit is not None else "")


def _without_waiting(
    wastes: list[Waste], seconds: float, waited: float, when: str
) -> EngineVerdict:
    none = f"{'hardly any' if waited > 0 else 'no'} request waited {when}"
    if not wastes:
        limit = "nothing limits it"
        return EngineVerdict(f"{limit}: {none}", seconds=seconds, waited=waited, limit=limit)
    notes = [waste.text for waste in wastes[:_MAX_NOTES]]
    return EngineVerdict(
        "; ".join((none, *notes)),
        cause=wastes[0].key,
        share=wastes[0].share,
        seconds=seconds,
        waited=waited,
        notes=notes,
    )


# --- Who is behind it


class _Culprit(NamedTuple):
    """The request or the setting behind a cause, in words."""

    text: str = ""
    request_id: str | None = None


def _culprit(state: EngineData, cause: str) -> _Culprit:
    inversion = inversions.present_inversion(state)
    if inversion is not None and inversion.cause == cause:
        return _Culprit(inversions.describe(state, inversion), inversion.request_id)
    match cause:
        case "no_blocks":
            return _block_holder(state)
        case "reserved_blocks":
            return _reserver(state)
        case "seq_limit":
            return _slot_holders(state)
        case "token_budget":
            return _largest_chunk(state)
        case "lora_slots":
            return _adapters(state)
        case "unknown" | "paused":
            return _Culprit(", ".join(full_resources(state)))
        case _:
            return _longest_parked(state, cause)


def _culprit_since(state: EngineData, cause: str, start: float) -> _Culprit:
    """Returns who is behind a cause: now, if requests wait for it, or else since some time."""
    if cause in waiting_by_cause(state):
        return _culprit(state, cause)
    inversion = state.limits.inversion
    if inversion is not None and inversion.cause == cause and inversion.time >= start:
        return _Culprit(inversions.describe(state, inversion), inversion.request_id)
    return _Culprit()


def _waited_for(state: EngineData) -> _Culprit:
    """Returns the request for which others waited longest."""
    known = [request for request in state.requests.values() if request.harm]
    worst = max(known, key=lambda request: request.harm or 0.0, default=None)
    if worst is None or not worst.harm or worst.harm < 1.0:
        return _Culprit()
    seconds = fmt.seconds(worst.harm)
    return _Culprit(f"others waited {seconds} for {worst.request_id}", worst.request_id)


def _block_holder(state: EngineData) -> _Culprit:
    """Returns the largest holder of blocks beside the request that waits for them."""
    held, head, pool = holdings.amounts(state, "no_blocks"), _head(state), _pool(state.info)
    ended = [name for name in held if holdings.has_ended(state, state.requests[name])]
    blocks = {own for name in ended for own in holdings.blocks(state, state.requests[name])}
    if ended and (total := len(blocks)) >= pool / 2:
        return _Culprit(
            f"{fmt.plural(len(ended), 'ended request')} ({_names(ended)})"
            f" hold{'s' if len(ended) == 1 else ''} {total:,} of {pool:,}",
            ended[0],
        )
    misses = ""
    if head is not None and (own := held.pop(head.request_id, 0)):
        missing = head.wait_reason.num_missing if head.wait_reason is not None else 0
        needs = f"misses {missing:,} beside the" if missing > 0 else "has"
        misses = f"{head.request_id} {needs} {own:,} that it holds, "
    if not held or not pool:
        return _Culprit()
    name, most = next(iter(held.items()))
    if most >= _LEAST_HELD * pool:
        return _Culprit(f"{misses}{name} holds {most:,} of {pool:,}{_activity(state, name)}", name)
    return _Culprit(
        f"{misses}{fmt.plural(len(held), 'request')} hold {min(sum(held.values()), pool):,} of"
        f" {pool:,} (num_gpu_blocks), {name} {most:,}",
        name,
    )


def _activity(state: EngineData, name: str) -> str:
    """Says what a request waits for instead of its turn; empty if it does not."""
    for seq_id in state.requests[name].seq_ids:
        status = state.sequences[seq_id].engine_status
        if status not in OWN_TURN:
            return f" while {cause_in_words(status).sentence}"
    return ""


def _reserver(state: EngineData) -> _Culprit:
    """Returns the running request that may still generate most tokens."""
    info = state.info
    most, left = None, 0
    for request in holdings.running(state):
        params = request.sampling_params
        if params is None or params.max_tokens is None:
            continue
        output = max(len(state.sequences[own].output_token_ids) for own in request.seq_ids)
        if params.max_tokens - output > left:
            most, left = request, params.max_tokens - output
    if most is None or info is None or info.block_size < 1:
        return _Culprit()
    return _Culprit(
        f"{most.request_id} may still generate {left:,} tokens (max_tokens), for which"
        f" {-(-left // info.block_size):,} of {_pool(info):,} blocks are reserved",
        most.request_id,
    )


def _slot_holders(state: EngineData) -> _Culprit:
    most = state.info.max_num_seqs if state.info is not None else 0
    slots = holdings.amounts(state, "seq_limit")
    if not slots or sum(slots.values()) < most:
        return _Culprit()  # none waits for them any more
    name, own = next(iter(slots.items()))
    if own >= max(2, _LEAST_HELD * most):
        return _Culprit(f"{name} has {own:,} of {most:,}", name)
    return _Culprit(f"all {most:,} sequences run")


def _largest_chunk(state: EngineData) -> _Culprit:
    name, most = _most(state, "token_budget")
    budget = state.info.max_num_batched_tokens if state.info is not None else None
    if not name or budget is None or most < _LEAST_HELD * budget:
        return _Culprit()
    return _Culprit(f"{name} took {most:,} of {budget:,} in the last step", name)


def _most(state: EngineData, cause: str) -> tuple[str, int]:
    """Returns the largest holder and its amount; an empty name without one."""
    return next(iter(holdings.amounts(state, cause).items()), ("", 0))


def _adapters(state: EngineData) -> _Culprit:
    """Returns the adapter that most running requests use, and who waits for another one."""
    waiting = next(_passed_over(state, "lora_slots"), None)
    users = holdings.adapters(state, than="" if waiting is None else waiting.lora)
    if not users:
        return _Culprit()
    lora = max(users, key=lambda own: len(users[own]))
    used = (
        f"{lora} is used by {fmt.plural(len(users[lora]), 'running request')}"
        f" ({_names(users[lora])})"
    )
    if waiting is None or waiting.wait.since is None:
        return _Culprit(used, users[lora][0])
    seconds = fmt.seconds(elapsed(waiting.wait.since, state.time))
    own = f"{waiting.request_id} has waited {seconds} for a slot of {waiting.lora}"
    return _Culprit(f"{own}, {used}", waiting.request_id)


def _passed_over(state: EngineData, cause: str) -> Iterator[RequestState]:
    """Yields the waiting requests for which the last step gave a cause."""
    for name in state.wait_reason_ids:
        request = state.requests.get(name)
        reason = None if request is None else request.wait_reason
        if request is not None and reason is not None and reason.cause == cause:
            yield request


def _longest_parked(state: EngineData, status: str) -> _Culprit:
    for request in state.requests.values():  # in order of arrival
        if request.finish_reason is None and any(
            state.sequences[seq_id].engine_status == status for seq_id in request.seq_ids
        ):
            since = request.wait.since
            seconds = fmt.seconds(state.time - since) if since is not None else "some time"
            number = holdings.num_blocks(state, request)
            holds = f", and holds {fmt.plural(number, 'block')}" if number else ""
            return _Culprit(f"{request.request_id} has waited {seconds}{holds}", request.request_id)
    return _Culprit()


def _head(state: EngineData) -> RequestState | None:
    for name in state.wait_reason_ids:
        request = state.requests.get(name)
        if request is not None and request.finish_reason is None:
            return request
    return None


def _pool(info: EngineInfo | None) -> int:
    return max(info.num_gpu_blocks - info.num_reserved_blocks, 0) if info is not None else 0


def _names(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more:,} more" if more > 0 else "")


# --- Waste


def _wastes(state: EngineData, sums: Mapping[str, float]) -> Iterator[Waste]:
    """Yields what is lost, each with its share of the time, of the tokens or of the drafts."""

    def get(key: str) -> float:
        return sums.get(key, 0.0)

    busy, tokens, steps = get("busy"), get("tokens"), get("steps")
    if (lost := min(get("lost"), tokens)) > 0 and get("preemptions") >= 2:
        share = lost / tokens
        if share >= _LEAST_SHARE:
            yield Waste(
                "recomputed",
                share,
                f"{fmt.percent(share)} of all computed tokens ({lost:,.0f} of {tokens:,.0f}) are"
                f" computed again after {get('preemptions'):,.0f} preemptions",
            )
    if (aborted := min(get("aborted"), tokens)) > 0 and get("aborts") >= 2:
        share = aborted / tokens
        if share >= _LEAST_SHARE:
            yield Waste(
                "aborted",
                share,
                f"{get('aborts'):,.0f} aborted requests had {aborted:,.0f} of {tokens:,.0f}"
                f" computed tokens ({fmt.percent(share)})",
            )
    if busy <= 0 or steps < _LEAST_STEPS:
        return
    if (share := min(get("empty") / busy, 1.0)) >= _LEAST_SHARE:
        yield Waste(
            "empty_steps",
            share,
            f"{get('empty_steps'):,.0f} of {steps:,.0f} steps are empty although requests are"
            f" unfinished ({fmt.percent(share)} of the time)",
        )
    if (eager := _eager(sums, busy)) is not None:
        yield eager
    yield from _host(state, sums, busy, steps)
    if (load := get("load")) > _LEAST_RATIO * get("load_computed") > 0 and load >= 1.0:
        yield Waste(
            "slow_load",
            min(load / busy, 1.0),
            f"KV loads took {fmt.seconds(load)}, and computing these tokens takes"
            f" {fmt.seconds(get('load_computed'))}",
        )
    drafted, accepted = sum(state.num_drafted), sum(state.num_accepted)
    if drafted >= 100 and accepted < 0.2 * drafted:
        yield Waste(
            "drafts",
            0.0,
            f"{fmt.percent(accepted, drafted)} of {drafted:,} draft tokens are accepted",
        )


def _eager(sums: Mapping[str, float], busy: float) -> Waste | None:
    """Judges the decode steps without a CUDA graph, beside those with one."""
    numbers = [sums.get(f"eager_{key}", 0.0) for key in ("steps", "time", "tokens")]
    num_steps, seconds, tokens = numbers
    if num_steps < _LEAST_STEPS or seconds < _LEAST_SHARE * busy:
        return None
    text = (
        f"{fmt.percent(min(seconds / busy, 1.0))} of the time in decode steps without a CUDA graph:"
        f" {fmt.seconds(seconds / num_steps)} a step of {tokens / num_steps:,.0f} tokens"
    )
    num_graphs, with_graph = sums.get("graph_steps", 0.0), sums.get("graph_time", 0.0)
    if num_graphs >= _LEAST_STEPS:
        if seconds / num_steps < _LEAST_RATIO * with_graph / num_graphs:
            return None
        mean = sums.get("graph_tokens", 0.0) / num_graphs
        text += f", {fmt.seconds(with_graph / num_graphs)} with one ({mean:,.0f} tokens)"
    elif num_graphs == 0:
        return None  # it has none: a setting, and not a cliff
    return Waste("cuda_graph", min(seconds / busy, 1.0), text)


def _host(
    state: EngineData, sums: Mapping[str, float], busy: float, steps: float
) -> Iterator[Waste]:
    """Judges the time that the model does not run: the scheduler's, and that between steps."""
    if (share := min(sums.get("scheduler", 0.0) / busy, 1.0)) >= _LEAST_SHARE:
        each = sums["scheduler"] / steps
        first = state.limits.sums.get("first_scheduler", 0.0) / FIRST_STEPS
        grew = each > _LEAST_RATIO * first and state.limits.sums["steps"] > FIRST_STEPS
        more = f", {fmt.seconds(first)} in the first {FIRST_STEPS}" if grew else ""
        yield Waste(
            "scheduler",
            share,
            f"the scheduler takes {fmt.percent(share)} of the time ({fmt.seconds(each)} a step"
            f"{more})",
        )
    outside = sums.get("host", 0.0)
    if (share := min(outside / busy, 1.0)) >= _LEAST_SHARE:
        yield Waste(
            "host",
            share,
            f"the host takes {fmt.percent(share)} of the time between steps"
            f" ({fmt.seconds(outside / steps)} a step)",
        )
