"""Records a run of SGLang: `record_sglang.py` in the environment of `make test-sglang`."""

from __future__ import annotations

from pathlib import Path

from stepped_against_sglang import work
from stepping import alone, make_scheduler, stepped

from seqtop.history import FileWriter

PATH = Path(__file__).with_name("sglang.seqtop")


def record() -> None:
    """Records chunks, hits, retractions, aborts and a pause, with overlapping steps."""
    scheduler = make_scheduler(served_model_name="weights")
    with FileWriter(PATH, overwrite=True) as writer, stepped(scheduler) as engine:
        engine.session.add_listener(writer.record)
        engine.run(work(scheduler))
    print(f"sglang: {engine.num_compared} steps, {PATH.stat().st_size:,} bytes", flush=True)


if __name__ == "__main__":
    alone(record)
