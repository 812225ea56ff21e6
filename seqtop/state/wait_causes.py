"""The causes of waiting: words, sentence, unit, and the setting of the engine behind each.

Screens, filters, `seqtop explain`, `seqtop diff` and the exports take their words from here. Tests
compare the documents with it.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, assert_never, get_args

import msgspec

from seqtop.text import format as fmt
from seqtop.wire.messages import EngineInfo, WaitCause, WaitReason


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of waiting in words."""

    word: str
    """One word for the column *Why* and the filter `why:`; empty for time outside of steps."""
    label: str
    """The limit in a few words, for cells and sums."""
    noun: str = ""
    """The limit after the words "limited by"; empty for what no setting or pool limits."""
    sentence: str
    """The rest of a sentence that begins with "Waiting: "; `{limit}` is the setting's value."""
    unit: str = ""
    """The unit of `WaitReason.num_missing`; empty if nothing is counted."""
    setting: str = ""
    """The field of `EngineInfo`, named as in vLLM, that sets the limit; empty without one."""
    is_passed_over: bool = False
    """True if the scheduler goes on to the next request in the queue. Otherwise all requests behind
    wait for the same."""
    is_for_turn: bool = True
    """True if the request waits for what those before it in the queue take."""

    def limit(self, info: EngineInfo | None) -> int | None:
        """Returns the value of the setting; `None` if it is unknown or there is none."""
        return getattr(info, self.setting) if info is not None and self.setting else None

    def limited(self, info: EngineInfo | None) -> str:
        """Returns the sentence with the value of the setting, if that is known."""
        limit = self.limit(info)
        return self.sentence.replace("{limit}", "" if limit is None else f" ({limit:,})")

    def missing(self, number: int) -> str:
        """Returns the amount that is missing in words; empty if it is unknown."""
        if number <= 0 or not self.unit:
            return ""
        return f"{number:,} more {self.unit}{'' if number == 1 else 's'} needed"


def _declare(cause: WaitCause) -> Cause:
    match cause:
        case "no_blocks":
            return Cause(
                word="blocks",
                label="no free blocks",
                noun="KV blocks",
                sentence="too few blocks are free",
                unit="block",
                setting="num_gpu_blocks",
            )
        case "reserved_blocks":
            return Cause(
                word="reserve",
                label="reserved blocks",
                noun="reserved KV blocks",
                sentence="the free blocks are reserved for tokens that requests may still generate",
            )
        case "token_budget":
            return Cause(
                word="budget",
                label="token budget",
                noun="the token budget, max_num_batched_tokens",
                sentence="the step's token budget{limit} is used up",
                unit="token",
                setting="max_num_batched_tokens",
            )
        case "seq_limit":
            return Cause(
                word="seqs",
                label="max_num_seqs",
                noun="max_num_seqs",
                sentence="max_num_seqs{limit} sequences are running",
                unit="sequence slot",
                setting="max_num_seqs",
            )
        case "lora_slots":
            return Cause(
                word="lora",
                label="max_loras",
                noun="LoRA slots, max_loras",
                sentence="max_loras{limit} other LoRA adapters are in use",
                setting="max_loras",
                is_passed_over=True,
                is_for_turn=False,
            )
        case "paused":
            return Cause(
                word="paused",
                label="paused",
                noun="a paused scheduler",
                sentence="the scheduler is paused",
                is_for_turn=False,
            )
        case "unknown":
            return Cause(
                word="unknown",
                label="no reason given",
                noun="something that the scheduler does not name",
                sentence="the scheduler gave no reason",
                is_passed_over=True,
            )
    assert_never(cause)


def _declare_status(status: str, label: str, sentence: str) -> Cause:
    """Declares a status of vLLM, which says what a request waits for instead of its turn."""
    return Cause(word=status.lower(), label=label, sentence=sentence, is_for_turn=False)


ARRIVING = "arriving"
"""The cause of the time before the first step that could admit the request."""
BETWEEN_STEPS = "between_steps"
"""The cause of the time in which no step was running."""
PACED = "paced"
"""The cause of the part of it in which the engine waited on purpose."""
IN_PROGRESS = "in_progress"
"""The cause of the time since the last step: a step is reported when it ends."""

CAUSES = {cause: _declare(cause) for cause in get_args(WaitCause)}
"""All causes that a scheduler can give, by `WaitCause`."""
PASSED_OVER = frozenset(name for name, cause in CAUSES.items() if cause.is_passed_over)
"""The causes for which a scheduler passes over a request and examines the next one."""
OWN_TURN = frozenset({"", "PREEMPTED", "RETRACTED", "WAITING", "SWAPPED"})
"""Values of `engine_status` with which a request waits for its turn."""
SESSION_INPUT = "WAITING_FOR_STREAMING_REQ"
"""The status of vLLM in which a session waits for its client. It does not run and is in the queue,
but keeps its sequence slot."""
BEHIND = "queue"
"""The word for a wait behind others in the queue."""
OUTSIDE_STEPS = {
    ARRIVING: Cause(
        word="",
        label="arrival",
        sentence="it arrived after the step had been scheduled",
        is_for_turn=False,
    ),
    BETWEEN_STEPS: Cause(
        word="", label="between steps", sentence="no step was running", is_for_turn=False
    ),
    PACED: Cause(
        word="",
        label="paced on purpose",
        sentence="the engine waited on purpose",
        is_for_turn=False,
    ),
    IN_PROGRESS: Cause(
        word="",
        label="no step ended",
        sentence="no step has ended since then",
        is_for_turn=False,
    ),
}
"""The causes that no scheduler gives: a reason holds for the step that gave it."""
_GRAMMAR = "its grammar is being compiled"
_STATUSES = {
    status: _declare_status(status, label, sentence)
    for status, label, sentence in (
        ("WAITING_FOR_REMOTE_KVS", "KV connector", "a KV connector is loading its KV cache"),
        (SESSION_INPUT, "session input", "its streaming session has no more input"),
        ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "grammar", _GRAMMAR),
        ("WAITING_FOR_FSM", "grammar", _GRAMMAR),
        (
            "DECODE_RETRACTED_QUEUE",
            "retracted",
            "it was retracted, and its KV cache is to be loaded again",
        ),
        ("STARVED", "no pages", "the pool has no pages for its next tokens"),
        ("READ_BUDGET", "read budget", "the step can read no more tokens of the KV cache"),
        ("SAFETY_MARGIN", "safety margin", "too little of the pool is free to compute prompts"),
    )
}


WaitKind: TypeAlias = Literal["input", "grammar", "encoder", "load", "transfer", "adapter", "other"]
"""Kinds of what a request waits for instead of its turn; each has a limit in `seqtop.checks`."""
_KINDS: tuple[tuple[WaitKind, tuple[str, ...], str, str], ...] = (
    ("input", ("STREAMING",), "session input", "its streaming session has no more input"),
    ("grammar", ("GRAMMAR", "FSM"), "grammar", _GRAMMAR),
    ("encoder", ("ENCODER",), "encoder", "the output of an encoder is missing"),
    ("adapter", ("LORA", "ADAPTER"), "adapter", "its LoRA adapter is not loaded"),
    (
        "load",
        ("KV", "LOAD", "PREALLOC", "BOOTSTRAP", "TRANSFER"),
        "KV transfer",
        "its KV cache comes from another engine or a store, or goes there",
    ),
    ("transfer", ("INFLIGHT",), "KV transfer", "its KV cache is being sent"),
)
"""The kinds, parts of the statuses of engines that have them, and labels and sentences."""


def wait_kind(status: str) -> WaitKind:
    """Returns the kind of wait that an engine's own status stands for."""
    for kind, words, _, _ in _KINDS:
        if any(word in status for word in words):
            return kind
    return "other"


def is_known_status(cause: str) -> bool:
    """Returns whether a cause is a status of an engine: what the request itself waits for."""
    return cause in _STATUSES or wait_kind(cause) != "other"


def cause_in_words(cause: str) -> Cause:
    """Returns the words for a cause: a `WaitCause`, time outside of the steps, or an own status."""
    known = CAUSES.get(cause) or OUTSIDE_STEPS.get(cause) or _STATUSES.get(cause)
    if known is not None:
        return known
    kind = wait_kind(cause)
    for own, _, label, sentence in _KINDS:
        if own == kind:
            return _declare_status(cause, label, sentence)
    return _declare_status(cause, cause, "the engine gave a reason of its own")


def head_reason(reasons: Sequence[WaitReason]) -> WaitReason | None:
    """Returns the reason of the head of the queue, for which all behind it wait, if one is given.

    Args:
        reasons: The reasons of a step, in the order of the queue.
    """
    for reason in reasons:
        if reason.cause not in PASSED_OVER:
            return reason
    return None


def describe_reason(reason: WaitReason, info: EngineInfo | None) -> str:
    """Describes a reason to wait as the rest of a sentence that begins with "Waiting: "."""
    cause = CAUSES[reason.cause]
    missing = cause.missing(reason.num_missing)
    return cause.limited(info) + (f"; {missing}" if missing else "")


def describe_limit(reason: WaitReason, info: EngineInfo | None) -> str:
    """Describes a reason to wait in a table's cell: the limit, and what was missing."""
    cause = CAUSES[reason.cause]
    if cause.label == cause.setting and (limit := cause.limit(info)) is not None:
        return f"{cause.label}: {fmt.count(limit)}"
    missing = f": {fmt.count(reason.num_missing)} missing" if reason.num_missing > 0 else ""
    return cause.label + missing
