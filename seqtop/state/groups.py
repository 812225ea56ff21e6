"""Groups of requests, and the figures of each: who takes most of the KV cache.

A change costs O(1) for each sequence that changed, and O(blocks) for a block table that changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import repeat, zip_longest
from typing import TypeAlias

import msgspec
from sortedcontainers import SortedList

from seqtop.sequence import SequenceStatus, latency
from seqtop.state.expressions import MAX_ID, ExpressionError, compile_expression
from seqtop.state.fields import FIELDS, harm
from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.percentiles import percentile

PREFIX = "prefix"
"""The key of groups by the id of the request up to its first separator."""
KEYS = (PREFIX, "status", "stage", "prio", "why", "lora")
"""The keys that requests can be grouped by: `PREFIX`, and keys of fields; or an expression."""
LASTING_KEYS = (PREFIX, "prio", "lora")
"""Those of `KEYS` by which a request has one group from its arrival to its end."""
HELP = {PREFIX: "id up to its first separator, such as -"} | {
    key: FIELDS[key].help for key in KEYS if key != PREFIX
}
_SEPARATOR = re.compile(r"[-_.:/#]")
_EXPRESSION = re.compile(r"re:/(?P<regex>(?:\\.|[^/\\])*)/")

GroupName: TypeAlias = Callable[[RequestState, SequenceState, float], str]
"""Returns the group of a request, for one of its sequences and the engine's time in epoch seconds.
"""


Block: TypeAlias = int | tuple[int, int]
"""A block of the first table, or the number of another table and a block of it."""


class GroupKeyError(ValueError):
    """An invalid key of groups; `str()` is one sentence with the reason."""


class Group(msgspec.Struct):
    """The sums of the requests of one group; those of a filter, if there is one."""

    name: str
    """The value of the key; empty if the requests have none."""
    num_requests: int = 0
    num_running: int = 0
    """Running sequences."""
    num_waiting: int = 0
    """Waiting and swapped sequences."""
    num_blocks: int = 0
    """Blocks of the KV cache in tables of the group, each counted once. Groups may share some."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    waited_seconds: float = 0.0
    """The seconds that its requests have waited in the queue, together."""
    ttft_seconds: float | None = None
    """The median time to first token in seconds; `None` if there is none yet."""
    harm_seconds: float | None = None
    """The seconds for which its requests delayed others, or each other; `None` if none is known."""


def name_by(key: str) -> GroupName:
    """Returns the function that names the group of a request.

    Args:
        key: One of `KEYS`, or `re:/…/`: what an expression finds in the first 128 characters of
            the id of the request, or its first parenthesis.

    Raises:
        GroupKeyError: There is no such key, or the expression is invalid.
    """
    if key == PREFIX:
        return lambda request, _, __: _SEPARATOR.split(request.request_id, maxsplit=1)[0]
    if (expression := _EXPRESSION.fullmatch(key)) is not None:
        try:
            pattern = compile_expression(expression["regex"])
        except ExpressionError as error:
            raise GroupKeyError(str(error)) from error
        return lambda request, _, __: _found(pattern, request.request_id[:MAX_ID])
    if key not in KEYS:
        raise GroupKeyError(f"cannot group by {key!r}: there are {', '.join(KEYS)} and re:/…/")
    value = FIELDS[key].value

    def name(request: RequestState, sequence: SequenceState, now: float) -> str:
        known = value(request, sequence, now)
        return "" if known is None else str(known)

    return name


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    if match is None:
        return ""
    return (match[1] or "") if pattern.groups else match[0]


def group_by(state: EngineData, key: str, filter_: Filter = NO_FILTER) -> list[Group]:
    """Returns the groups of the requests in a state, those with the most blocks first.

    A request whose sequences differ is in the group of each, and counts in each.

    Args:
        state: The state.
        key: As for `name_by`.
        filter_: The sequences to count.

    Raises:
        GroupKeyError: There is no such key.
    """
    groups = Groups(key)
    groups.update(
        state,
        (
            seq_id
            for request in state.requests.values()
            for seq_id in request.seq_ids
            if seq_id in state.sequences
            and filter_.matches(request, state.sequences[seq_id], state.time)
        ),
    )
    return sorted(
        (groups.figures(name, state.time) for name in groups.names),
        key=lambda group: (-group.num_blocks, -group.num_requests),
    )


class _Counted(msgspec.Struct):
    """The part of a sequence that is counted."""

    name: str
    request_id: str
    status: SequenceStatus | None = None
    num_output_tokens: int = 0
    tables: list[list[int]] = []


class _CountedRequest(msgspec.Struct):
    """The part of a request that is counted in one group."""

    num_sequences: int = 0
    """Those of its sequences that are in the group."""
    num_prompt_tokens: int = 0
    num_preemptions: int = 0
    waited: float = 0.0
    since: float | None = None
    ttft: float | None = None
    harm: float | None = None


class _Sums(msgspec.Struct):
    """Sums from which the figures of one group follow."""

    group: Group
    requests: dict[str, _CountedRequest] = {}
    seq_ids: dict[int, None] = {}
    holders: set[int] = set()
    """Those of its sequences that have blocks in their tables."""
    blocks: Counter[Block] = msgspec.field(default_factory=Counter)
    """The number of entries in tables."""
    ttfts: SortedList = msgspec.field(default_factory=SortedList)
    since: float = 0.0
    """The sum of the times at which the present waits began."""
    num_waits: int = 0
    """The number of present waits."""
    num_harms: int = 0
    """The requests whose harm is known."""


class Groups:
    """The groups of those sequences that were added.

    Args:
        key: As for `name_by`.

    Raises:
        GroupKeyError: There is no such key.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._name = name_by(key)
        self._counted: dict[int, _Counted] = {}
        self._sums: dict[str, _Sums] = {}

    @property
    def names(self) -> Set[str]:
        """The names of all groups."""
        return self._sums.keys()

    def name_of(self, seq_id: int) -> str | None:
        """Returns the group of a sequence; `None` if it is in none."""
        counted = self._counted.get(seq_id)
        return None if counted is None else counted.name

    def members(self, name: str) -> Iterable[int]:
        """Returns the ids of the sequences of a group."""
        sums = self._sums.get(name)
        return () if sums is None else sums.seq_ids

    def holders(self, name: str) -> Set[int]:
        """Returns the ids of those sequences of a group that hold blocks."""
        sums = self._sums.get(name)
        return set() if sums is None else sums.holders

    def figures(self, name: str, now: float) -> Group:
        """Returns the figures of a group at the engine's time, epoch seconds."""
        sums = self._sums[name]
        group = msgspec.structs.replace(sums.group)
        group.num_requests, group.num_blocks = len(sums.requests), len(sums.blocks)
        group.waited_seconds += sums.num_waits * now - sums.since
        group.ttft_seconds = percentile(sums.ttfts, 50)
        if not sums.num_harms:
            group.harm_seconds = None
        return group

    def update(self, state: EngineData, seq_ids: Iterable[int]) -> None:
        """Counts sequences as they are in a state now; those that have left it are removed."""
        for seq_id in seq_ids:
            sequence = state.sequences.get(seq_id)
            if sequence is None:
                self.discard(seq_id)
                continue
            request = state.requests[sequence.request_id]
            name, counted = self._name(request, sequence, state.time), self._counted.get(seq_id)
            if counted is None or counted.name != name:
                self.discard(seq_id)
                counted = self._add(name, seq_id, request)
            sums = self._sums[name]
            _count(sums, counted, sequence)
            (sums.holders.add if any(counted.tables) else sums.holders.discard)(seq_id)
            _count_request(sums, sums.requests[request.request_id], request)

    def discard(self, seq_id: int) -> None:
        """Removes a sequence, if it was counted."""
        counted = self._counted.pop(seq_id, None)
        if counted is None:
            return
        sums = self._sums[counted.name]
        _count(sums, counted, None)
        del sums.seq_ids[seq_id]
        sums.holders.discard(seq_id)
        request = sums.requests[counted.request_id]
        request.num_sequences -= 1
        if not request.num_sequences:
            _count_request(sums, request, None)
            del sums.requests[counted.request_id]
        if not sums.seq_ids:
            del self._sums[counted.name]

    def _add(self, name: str, seq_id: int, request: RequestState) -> _Counted:
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = _Sums(Group(name, harm_seconds=0.0))
        sums.seq_ids[seq_id] = None
        sums.requests.setdefault(request.request_id, _CountedRequest()).num_sequences += 1
        counted = self._counted[seq_id] = _Counted(name, request.request_id)
        return counted


def _count(sums: _Sums, counted: _Counted, sequence: SequenceState | None) -> None:
    """Changes the sums of a group by what has changed of a sequence; `None` if it leaves."""
    group = sums.group
    num_output = 0 if sequence is None else len(sequence.output_token_ids)
    group.num_output_tokens += num_output - counted.num_output_tokens
    counted.num_output_tokens = num_output
    status = None if sequence is None else sequence.status
    if status is not counted.status:
        for word, sign in ((counted.status, -1), (status, 1)):
            if word is SequenceStatus.RUNNING:
                group.num_running += sign
            elif word in (SequenceStatus.WAITING, SequenceStatus.SWAPPED):
                group.num_waiting += sign
        counted.status = status
    tables = [] if sequence is None else [sequence.block_table, *sequence.group_block_tables]
    if tables != counted.tables:
        for number, (old, new) in enumerate(zip_longest(counted.tables, tables, fillvalue=())):
            _count_table(sums.blocks, number, old, new)
        counted.tables = [[*table] for table in tables]


def _count_table(
    blocks: Counter[Block], number: int, old: Sequence[int], new: Sequence[int]
) -> None:
    """Counts the blocks of a table instead of those that it had before."""
    if list(new[: len(old)]) == list(old):  # usually it grew
        blocks.update(_named(number, new[len(old) :]))
        return
    blocks.update(_named(number, new))
    for block in _named(number, old):
        blocks[block] -= 1
        if not blocks[block]:
            del blocks[block]


def _named(number: int, table: Sequence[int]) -> Iterable[Block]:
    return zip(repeat(number), table) if number else table


def _count_request(sums: _Sums, counted: _CountedRequest, request: RequestState | None) -> None:
    """Changes the sums of a group by what has changed of a request; `None` if it leaves."""
    group = sums.group
    prompt, preemptions, waited, since = 0, 0, 0.0, None
    ttft = delay = None
    if request is not None:
        prompt, preemptions = request.num_prompt_tokens, request.num_preemptions
        waited, since = request.wait.total, request.wait.since
        ttft, delay = latency.ttft(request.metrics), harm(request)
    group.num_prompt_tokens += prompt - counted.num_prompt_tokens
    group.num_preemptions += preemptions - counted.num_preemptions
    group.waited_seconds += waited - counted.waited
    counted.num_prompt_tokens, counted.num_preemptions = prompt, preemptions
    counted.waited = waited
    if since != counted.since:
        sums.since += (since or 0.0) - (counted.since or 0.0)
        sums.num_waits += (since is not None) - (counted.since is not None)
        counted.since = since
    if ttft != counted.ttft:
        if counted.ttft is not None:
            sums.ttfts.remove(counted.ttft)
        if ttft is not None:
            sums.ttfts.add(ttft)
        counted.ttft = ttft
    if delay != counted.harm:
        group.harm_seconds = (group.harm_seconds or 0.0) + (delay or 0.0) - (counted.harm or 0.0)
        sums.num_harms += (delay is not None) - (counted.harm is not None)
        counted.harm = delay
