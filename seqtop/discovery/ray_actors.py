"""The named actors of a Ray cluster. Needs the extra `ray`."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import ray.util
from ray.exceptions import RayError
from ray.util.state import StateApiClient
from ray.util.state.common import ListApiOptions, StateResource
from ray.util.state.exception import RayStateApiException

from seqtop.discovery import DiscoveryError, Found, PolledDiscovery
from seqtop.transport.endpoints import local_endpoint, reached_at

BIND = "SEQTOP_BIND"
"""The variable of a runtime environment by which an actor says where its engine publishes."""
_REQUEST_SECONDS = 10
_MOST_ACTORS = 10_000
"""The most that Ray lists."""


class _RuntimeEnvironment(msgspec.Struct):
    env_vars: dict[str, str] = {}


class RayActors(PolledDiscovery):
    """Finds the engines in the named actors of a Ray cluster, as `ray list actors` does.

    Args:
        address: The address of the cluster or of its dashboard; by default that of `RAY_ADDRESS`,
            or the cluster of this machine.
    """

    _SECONDS = 2.0

    def __init__(self, address: str | None = None) -> None:
        super().__init__("Ray")
        self._address = address
        self._client: StateApiClient | None = None

    def explain_none(self) -> str:
        """Returns a sentence on why no engine was found."""
        return f"no named actor of the Ray cluster has {BIND} in its runtime environment"

    def _find(self) -> Iterable[Found]:
        try:
            if self._client is None:
                self._client = StateApiClient(self._address)
            addresses = {node.node_id: node.node_ip for node in self._list(StateResource.NODES)}
            actors = self._list(StateResource.ACTORS)
        except (RayError, RayStateApiException, OSError, RuntimeError) as error:
            reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
            raise DiscoveryError(f"no Ray cluster answers: {reason}") from error
        return engines_of(actors, addresses, ray.util.get_node_ip_address())

    def _list(self, resource: StateResource) -> list[Any]:
        assert self._client is not None
        options = ListApiOptions(
            limit=_MOST_ACTORS,
            timeout=_REQUEST_SECONDS,
            filters=[("state", "=", "ALIVE")],
            detail=True,
        )
        listed: list[Any] = self._client.list(resource, options, raise_on_missing_output=False)
        return listed


def engines_of(
    actors: Iterable[Any], addresses: Mapping[str, str], own_address: str
) -> list[Found]:
    """Returns the engines of actors that can be reached from here.

    Args:
        actors: Actors that live (`ray.util.state.common.ActorState`).
        addresses: The addresses of nodes by their ids.
        own_address: The address of this node, whose loopback interface can be reached, too.
    """
    found = []
    for actor in actors:
        if not actor.name or (bind := _bind(actor.serialized_runtime_env)) is None:
            continue
        address = addresses.get(actor.node_id, "")
        if address == own_address and bind.startswith(("tcp://", "ipc://")):
            endpoint: str | None = local_endpoint(bind)
        else:
            endpoint = reached_at(bind, address) if address else None
        if endpoint is not None:
            found.append((actor, endpoint))
    names = collections.Counter(actor.name for actor, _ in found)
    return sorted(
        Found(
            actor.name if names[actor.name] == 1 else f"{actor.ray_namespace}/{actor.name}",
            endpoint,
        )
        for actor, endpoint in found
    )


def _bind(serialized: str | None) -> str | None:
    try:
        return msgspec.json.decode(serialized or "{}", type=_RuntimeEnvironment).env_vars.get(BIND)
    except msgspec.MsgspecError:
        return None
