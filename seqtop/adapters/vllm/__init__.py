"""vLLM's V1 engine, seen by seqtop. See `docs/vllm.md`.

In two halves, so that the scheduler's thread does next to nothing:

- in vLLM's EngineCore process, `hook` wraps a scheduler's methods, `collect` takes down what they
  did as plain `notes`, and `outbox` hands those over without ever waiting;
- in a process of its own, `publish` turns the notes into messages (`translate`), adds the text
  (`text`) and serves the viewers.
"""

import os


def register() -> None:
    """vLLM's general plugin, called in each of its processes.

    Does nothing at all unless `SEQTOP_BIND` is set, and never raises.
    """
    if os.environ.get("SEQTOP_BIND"):
        from seqtop.adapters.vllm import hook

        hook.install()
