"""What a user says to the adapter, by environment variables, which all vLLM processes inherit."""

import os
from collections.abc import Mapping

import msgspec

from seqtop.wire.endpoints import check_bind, rank_endpoint


class Settings(msgspec.Struct, frozen=True):
    bind: str
    """Where data-parallel rank 0 publishes."""
    insecure: bool = False
    """Whether `bind` may be reachable from other machines."""
    force: bool = False
    """Whether to try with a version of vLLM that is not known to work."""
    engine_id: str = ""
    """The name under which viewers know this engine; by default the model's."""
    tokenizer: str | None = None
    """A folder, file or hub id to read the tokenizer from; empty for no text at all."""


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; `SEQTOP_BIND` must be set."""
    return Settings(
        bind=environ["SEQTOP_BIND"],
        insecure=environ.get("SEQTOP_INSECURE", "") not in ("", "0"),
        force=environ.get("SEQTOP_FORCE", "") not in ("", "0"),
        engine_id=environ.get("SEQTOP_ENGINE_ID", ""),
        tokenizer=environ.get("SEQTOP_TOKENIZER"),
    )


def endpoint_of(settings: Settings, rank: int) -> str:
    """Where the engine of data-parallel rank `rank` publishes.

    Raises:
        EndpointError: that cannot be bound, or may not be.
    """
    return check_bind(rank_endpoint(settings.bind, rank), insecure=settings.insecure)
