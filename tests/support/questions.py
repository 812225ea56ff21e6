"""A recorded run whose every figure is known, to put questions to."""

from pathlib import Path
from typing import Any

from seqtop.history import FileWriter
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.messages import StepStats
from tests.support import events
from tests.support.scripted import Script, ScriptedSource

SLOW_STEP = 60
"""The first of the steps in which throughput falls."""
NUM_SLOW = 40
END = 180


def question_run() -> tuple[ScriptedSource, Script]:
    """Plays nine seconds of an engine with `max_num_seqs` 2 and 64 blocks.

    - `late` waits 5 s: 100 steps of 50 ms, the head of the queue. In 60 of these two sequences
      are running, in 40 too few blocks are free. `last` waits behind it.
    - `twin` finds 32 of its 40 prompt tokens in the prefix cache, which `early` holds.
    - Between steps 60 and 100 only one sequence decodes, instead of two.
    - From step 120 on, `stuck` runs without a token.
    """
    source = ScriptedSource()
    script = Script(source, num_gpu_blocks=64, max_num_seqs=2)
    script.arrive("early", max_tokens=400)
    script.step(prefill={"early": 40})
    script.arrive("twin", max_tokens=400)
    script.step(prefill={"twin": 8}, share={"twin": "early"})
    script.arrive("late")
    script.arrive("last")
    for number in range(script.number, END):
        waits = []
        if number < 102:
            cause = "seq_limit" if number < 62 else "no_blocks"
            waits = [events.wait_reason("late", cause)]  # type: ignore[arg-type]
        if number == 102:
            script.step(prefill={"late": 40})
            continue
        running = ["early", "twin", *(["late"] if number > 102 else [])]
        if SLOW_STEP <= number < SLOW_STEP + NUM_SLOW:
            running = ["early"]
        if number >= 120:
            running = [name for name in running if name != "twin"]
        script.step(decode=running, waits=waits)
    script.finish("late", SequenceStatus.FINISHED_STOPPED)
    return source, script


def save_run(path: Path) -> None:
    """Writes the events of `question_run` to a recording."""
    source, _ = question_run()
    state = EngineState()
    with FileWriter(path) as writer:
        for number, (_, event) in enumerate(source.history.events(0, source.history.last)):
            if event is None:
                continue
            state.apply(event)
            writer.append(number, codec.encode(event), event, state)


def stats(**changes: Any) -> StepStats:
    """Figures of a step, changed as given."""
    values = {
        "num_running": 1,
        "num_used_blocks": 2,
        "num_free_blocks": 20,
        "num_cached_blocks": 2,
        "num_decode_tokens": 1,
        "scheduler_time": 0.1,
        "model_forward_time": 0.5,
        "model_execute_time": 0.6,
    }
    return events.stats(**(values | changes))
