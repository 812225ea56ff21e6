"""The adapter for the continuous batching of Hugging Face transformers.

See `docs/transformers.md`. It has the two halves that `seqtop.adapters` describes: in the process
with the model, `hook` wraps the methods of a `ContinuousBatchProcessor`, and `processor_observer`
records their calls.
"""

from typing import Any

from seqtop.process import bind_setting


def attach(manager: Any) -> None:
    """Publishes what a `ContinuousBatchingManager` does to each request, until it is stopped.

    Does nothing unless `SEQTOP_BIND`, or the first line of the file `bind` beside the user's
    configuration, names an endpoint or is `dormant`. Never raises: what is wrong is a line in the
    log. A second call with the same manager has no effect.

    Args:
        manager: The manager, which may have been started already.
    """
    bind = bind_setting.read()
    if bind:
        from seqtop.adapters.transformers import hook

        hook.follow(manager, bind)


def attach_all() -> None:
    """Attaches to every manager that this process creates from now on, as `attach` does."""
    bind = bind_setting.read()
    if bind:
        from seqtop.adapters.transformers import hook

        hook.follow_all(bind)
