"""The user's settings: environment variables, which all vLLM processes inherit."""

import os
from collections.abc import Mapping

import msgspec

from seqtop.transport.curve_keys import EngineKeys, KeyFileError, engine_keys
from seqtop.transport.endpoints import check_bind, rank_endpoint

DORMANT = "dormant"


class PublisherSettings(msgspec.Struct, frozen=True):
    """The settings of the adapter."""

    bind: str
    """The endpoint at which data-parallel rank 0 publishes, or `dormant`."""
    insecure: bool = False
    """True if `bind` may be reachable from other machines."""
    engine_id: str = ""
    """The name of the engine in viewers; the model's name by default."""
    tokenizer: str | None = None
    """The directory, file or hub id of the tokenizer; empty for no text at all."""
    redact: bool = False
    """True to remove text and token ids."""
    server_secret_key: str = ""
    """The engine's secret key file. If given, only holders of keys are admitted."""
    authorized_clients: str = ""
    """The viewers to admit: a public key file, or a directory of such files."""

    flight_recorder: str = ""
    """The directory of a flight recorder's records; empty for none."""
    flight_recorder_options: str = ""
    """Further options of `seqtop record` for the flight recorder."""

    @property
    def is_dormant(self) -> bool:
        """True if the engine publishes nothing until `seqtop attach` wakes it."""
        return self.bind == DORMANT

    @property
    def has_keys(self) -> bool:
        """True if CurveZMQ keys are configured."""
        return bool(self.server_secret_key)

    def curve_keys(self) -> EngineKeys | None:
        """Loads the configured CurveZMQ keys, if there are any.

        Raises:
            KeyFileError: They cannot be read.
        """
        if not self.has_keys:
            return None
        return engine_keys(self.server_secret_key, self.authorized_clients)


def from_environment(bind: str, environ: Mapping[str, str] = os.environ) -> PublisherSettings:
    """Reads the settings other than `bind` from environment variables.

    Raises:
        KeyFileError: The engine's key is given without the viewers' keys, or the reverse.
        ValueError: A dormant engine has a flight recorder, which would wake it.
    """
    secret_key = environ.get("SEQTOP_SERVER_SECRET_KEY", "")
    clients = environ.get("SEQTOP_AUTHORIZED_CLIENTS", "")
    if bool(secret_key) != bool(clients):
        raise KeyFileError("SEQTOP_SERVER_SECRET_KEY and SEQTOP_AUTHORIZED_CLIENTS belong together")
    flight_recorder = environ.get("SEQTOP_FLIGHT_RECORDER", "")
    if flight_recorder and bind == DORMANT:
        raise ValueError("SEQTOP_FLIGHT_RECORDER needs an endpoint as SEQTOP_BIND, not 'dormant'")
    return PublisherSettings(
        bind=bind,
        insecure=_is_set(environ, "SEQTOP_INSECURE"),
        engine_id=environ.get("SEQTOP_ENGINE_ID", ""),
        tokenizer=environ.get("SEQTOP_TOKENIZER"),
        redact=_is_set(environ, "SEQTOP_REDACT"),
        server_secret_key=secret_key,
        authorized_clients=clients,
        flight_recorder=flight_recorder,
        flight_recorder_options=environ.get("SEQTOP_FLIGHT_RECORDER_OPTIONS", ""),
    )


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "") not in ("", "0")


def endpoint_of(settings: PublisherSettings, rank: int) -> str:
    """Returns the endpoint at which the engine of a data-parallel rank publishes.

    Raises:
        EndpointError: It is malformed, or it is reachable from other machines without permission.
    """
    endpoint = rank_endpoint(settings.bind, rank)
    return check_bind(
        endpoint,
        insecure=settings.insecure,
        has_keys=settings.has_keys,
        allow="set SEQTOP_INSECURE=1",
    )
