"""A state with texts, names and numbers that an export must not print as they are."""

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.messages import RequestArrived
from tests.support import events

NASTY = "plain \x1b]52;c;AAAA\x07 \x1b[2J [red]markup[/red] \u202e日本語\n=SUM(A1)"


def awkward_state() -> EngineState:
    """Returns three requests with control characters, wide names and non-finite numbers."""
    state = EngineState()
    for seq_id, name in enumerate(("req-0", "日本語-リクエスト", "evil\x1b[31m")):
        state.apply(
            RequestArrived(
                request_id=name,
                arrival_time=10.0,
                seq_ids=[seq_id],
                num_prompt_tokens=2,
                prompt="x",
            )
        )
    update = events.update(
        0,
        SequenceStatus.RUNNING,
        2,
        tokens=[5],
        logprobs=[float("-inf")],
        text=NASTY * 3,
        blocks=[1],
    )
    stats = events.stats(
        num_running=1,
        num_waiting=2,
        num_used_blocks=1,
        num_free_blocks=3,
        num_prefill_tokens=2,
        model_forward_time=float("nan"),
    )
    state.apply(events.step(0, start_time=11.0, time=12.0, sequences=[update], stats=stats))
    return state
