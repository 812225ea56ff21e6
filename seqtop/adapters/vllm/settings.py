"""What a user says to the adapter, by environment variables, which all vLLM processes inherit."""

import os
from collections.abc import Mapping

import msgspec

from seqtop.transport.curve_keys import EngineKeys, KeyFileError, engine_keys
from seqtop.transport.endpoints import check_bind, rank_endpoint


class AdapterSettings(msgspec.Struct, frozen=True):
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
    redact: bool = False
    """Whether texts and token ids are kept off the wire."""
    server_secret_key: str = ""
    """This engine's secret key file, to let in holders of keys alone."""
    authorized_clients: str = ""
    """Whom it lets in: a viewer's public key file, or a folder of such."""

    @property
    def has_keys(self) -> bool:
        return bool(self.server_secret_key)

    def keys(self) -> EngineKeys | None:
        """Those that were asked for.

        Raises:
            KeyFileError: they cannot be read.
        """
        if not self.has_keys:
            return None
        return engine_keys(self.server_secret_key, self.authorized_clients)


def from_environment(environ: Mapping[str, str] = os.environ) -> AdapterSettings:
    """Read the settings; `SEQTOP_BIND` must be set.

    Raises:
        KeyFileError: a key is given without saying for whom, or the reverse.
    """
    secret_key = environ.get("SEQTOP_SERVER_SECRET_KEY", "")
    clients = environ.get("SEQTOP_AUTHORIZED_CLIENTS", "")
    if bool(secret_key) != bool(clients):
        raise KeyFileError("SEQTOP_SERVER_SECRET_KEY and SEQTOP_AUTHORIZED_CLIENTS belong together")
    return AdapterSettings(
        bind=environ["SEQTOP_BIND"],
        insecure=_is_set(environ, "SEQTOP_INSECURE"),
        force=_is_set(environ, "SEQTOP_FORCE"),
        engine_id=environ.get("SEQTOP_ENGINE_ID", ""),
        tokenizer=environ.get("SEQTOP_TOKENIZER"),
        redact=_is_set(environ, "SEQTOP_REDACT"),
        server_secret_key=secret_key,
        authorized_clients=clients,
    )


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "") not in ("", "0")


def endpoint_of(settings: AdapterSettings, rank: int) -> str:
    """Where the engine of data-parallel rank `rank` publishes.

    Raises:
        EndpointError: that cannot be bound, or may not be.
    """
    endpoint = rank_endpoint(settings.bind, rank)
    return check_bind(endpoint, insecure=settings.insecure, has_keys=settings.has_keys)
