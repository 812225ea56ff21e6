"""The adapter for SGLang. See `docs/sglang.md`.

In SGLang's scheduler process, `hook` attaches to the scheduler, `scheduler_observer` records its
calls as plain observations, and these are sent to the publisher's process without ever waiting.
`seqtop.adapters` describes the rest.
"""

from seqtop.process import bind_setting


def register() -> None:
    """Attaches the adapter, as an entry point of SGLang's plugins in each of its processes.

    Does nothing unless `SEQTOP_BIND`, or the first line of the file `bind` beside the user's
    configuration, names an endpoint or is `dormant`. Never raises.
    """
    bind = bind_setting.read()
    if bind:
        from seqtop.adapters.sglang import hook

        hook.install(bind)
