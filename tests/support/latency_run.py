"""A run in which one request waits for blocks, is preempted, and finishes."""

from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SequenceStatus
from tests.support.events import wait_reason
from tests.support.scripted import Script, ScriptedSource


def latency_run() -> tuple[ScriptedSource, MemoryStore]:
    """`short` waits in step 1 for blocks that `long` holds, and is preempted for it in step 3."""
    history = MemoryStore()
    script = Script(ScriptedSource(history=history))
    script.arrive("long", num_prompt=100)
    script.step(prefill={"long": 100})
    script.arrive("short")
    waits = [wait_reason("short", "no_blocks", 3)]
    script.step(decode=["long"], waits=waits)
    script.step(prefill={"short": 40}, decode=["long"])
    script.step(preempt={"short": "long"}, decode=["long"], waits=waits)
    script.step(prefill={"short": 41}, decode=["long"])
    script.step(decode=["short"], stop={"short": SequenceStatus.FINISHED_STOPPED})
    return script.source, history
