"""The adapter for vLLM's V1 engine. See `docs/vllm.md`.

It has two halves, so that it takes little time of the scheduler's thread:

- In vLLM's EngineCore process, `hook` wraps the methods of a scheduler, `scheduler_observer`
  records their calls as plain observations, and these are sent to the other half without ever
  waiting.
- In a process of its own, `seqtop.adapters.publisher_main` converts the observations to messages,
  adds the text and serves the viewers.
"""

from seqtop.process import bind_setting


def register() -> None:
    """Attaches the adapter, as an entry point of vLLM's general plugins in each of its processes.

    Does nothing unless `SEQTOP_BIND`, or the first line of the file `bind` beside the user's
    configuration, names an endpoint or is `dormant`. Never raises.
    """
    bind = bind_setting.read()
    if bind:
        from seqtop.adapters.vllm import hook

        hook.install(bind)
