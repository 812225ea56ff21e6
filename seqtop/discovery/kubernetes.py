"""The pods of a Kubernetes cluster that a label selector matches. Needs the extra `kubernetes`."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import httpx
import kr8s.asyncio
import msgspec

from seqtop.discovery import Discovery, DiscoveryError, Found
from seqtop.text import format as fmt
from seqtop.transport.endpoints import reached_at

if TYPE_CHECKING:
    from kr8s._api import Api

BIND = "SEQTOP_BIND"
"""The variable by which a container says where its engine publishes."""
PORT_NAME = "seqtop"
"""The name of the container port that an engine publishes at, if the variable is not there."""

_WATCH_SECONDS = 60
"""The time after which the API server ends a watch, and the pods are listed again."""
_REQUEST_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
"""The time between two watches, should the server end them at once."""
_GONE = 410
"""The status of a watch whose version of the list the server no longer has."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Variable(msgspec.Struct):
    name: str = ""
    value: str | None = None


class _Port(msgspec.Struct, rename="camel"):
    container_port: int = 0
    name: str | None = None


class _Container(msgspec.Struct):
    name: str = ""
    env: list[_Variable] | None = None
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Status(msgspec.Struct, rename={"pod_ip": "podIP"}):
    phase: str = ""
    pod_ip: str | None = None


class Pod(msgspec.Struct):
    """The fields of a pod (`v1.Pod`) that are read."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def address(self) -> str | None:
        """The address of a pod that runs, also while it is being deleted: its engine ends later."""
        return self.status.pod_ip if self.status.phase == "Running" else None

    @property
    def binds(self) -> list[tuple[str, str]]:
        """The names of the containers with engines, and where these bind."""
        return [
            (container.name, bind)
            for container in self.spec.containers
            if (bind := _bind(container))
        ]


class _PodList(msgspec.Struct):
    metadata: _Metadata
    items: list[Pod]


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Failure(msgspec.Struct):
    code: int = 0
    message: str = ""


def _bind(container: _Container) -> str | None:
    for variable in container.env or ():
        if variable.name == BIND and variable.value:
            return variable.value
    for port in container.ports or ():
        if port.name == PORT_NAME:
            return f"tcp://0.0.0.0:{port.container_port}"
    return None


def engines_of(pod: Pod, port: int | None = None) -> Iterator[Found]:
    """Yields the engines of a pod that other pods reach.

    Args:
        pod: The pod.
        port: The port that its engine publishes at, whatever the pod says.
    """
    if not (address := pod.address):
        return
    binds = [("", f"tcp://0.0.0.0:{port}")] if port is not None else pod.binds
    for container, bind in binds:
        if (endpoint := reached_at(bind, address)) is not None:
            name = pod.metadata.name
            yield Found(f"{name}/{container}" if len(binds) > 1 else name, endpoint)


class Kubernetes(Discovery):
    """Finds the engines in the pods that a label selector matches, by a list and a watch.

    The cluster and the credentials are those of `kubectl`: the current context of a kubeconfig
    file, or the service account of the pod that this runs in.

    Args:
        selector: The label selector, such as `app=vllm`.
        namespace: The namespace; by default that of the context.
        all_namespaces: Looks in all of them.
        context: The context of the kubeconfig file, if not the current one.
        port: The port that engines publish at, whatever their pods say.
    """

    def __init__(
        self,
        selector: str,
        *,
        namespace: str | None = None,
        all_namespaces: bool = False,
        context: str | None = None,
        port: int | None = None,
    ) -> None:
        super().__init__("Kubernetes")
        self._selector, self._port = selector, port
        self._namespace, self._all_namespaces, self._context = namespace, all_namespaces, context
        self._pods: dict[str, Pod] = {}
        """The pods by their unique ids."""
        self._cancel: Callable[[], object] = lambda: None

    def close(self) -> None:
        """Ends the watch."""
        self._closing.set()
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._cancel()
        super().close()

    def explain_none(self) -> str:
        """Returns a sentence on why no engine was found."""
        pods = [*self._pods.values()]
        where = "any namespace" if self._all_namespaces else f"namespace {self._namespace}"
        if not pods:
            return f"no pod in {where} matches {self._selector}"
        running = [pod for pod in pods if pod.address]
        matching = fmt.plural(len(pods), "pod")
        if not running:
            return f"{matching} in {where} match {self._selector}, but none is running"
        for pod in running:
            for _, bind in pod.binds:
                return (
                    f"pod {pod.metadata.name} publishes at {bind}, which only the pod itself"
                    " reaches; forward its ports, or bind to tcp://0.0.0.0:PORT with keys"
                )
        return (
            f"{matching} in {where} match {self._selector}, but none has the variable {BIND} or a"
            f" port named {PORT_NAME}; --port names the port"
        )

    def _follow(self) -> None:
        try:
            asyncio.run(self._follow_pods())
        except asyncio.CancelledError:
            return
        except (httpx.HTTPError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise DiscoveryError(
                f"the Kubernetes API server cannot be reached: {reason}"
            ) from error
        except (kr8s.ServerError, kr8s.APITimeoutError) as error:
            raise DiscoveryError(f"the Kubernetes API server answers: {error}") from error
        except (ValueError, LookupError, TypeError) as error:  # kr8s reads a kubeconfig unchecked
            raise DiscoveryError(
                "neither a kubeconfig (KUBECONFIG, ~/.kube/config) nor a service account names a"
                f" Kubernetes cluster: {error}"
            ) from error

    async def _follow_pods(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kr8s warns of versions that it was not tested with
            api = await kr8s.asyncio.api(namespace=self._namespace, context=self._context)
        self._namespace = api.namespace
        while not self._closing.is_set():
            version = await self._list(api)
            try:
                await self._watch(api, version)
            except kr8s.ServerError as error:
                if error.response is None or error.response.status_code != _GONE:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _list(self, api: Api) -> str:
        """Lists the pods; returns the version of the list."""
        async with api.call_api(
            "GET",
            namespace=None if self._all_namespaces else self._namespace,
            url="pods",
            params={"labelSelector": self._selector},
            timeout=_REQUEST_SECONDS,
        ) as response:
            listed = msgspec.json.decode(response.content, type=_PodList)
        self._pods = {pod.metadata.uid: pod for pod in listed.items}
        self._report_pods()
        return listed.metadata.resource_version

    async def _watch(self, api: Api, version: str) -> None:
        """Follows the changes since a list, until the server ends the watch.

        kr8s has a method for that, but after `410 Gone` it asks for the same version forever.
        """
        async with api.call_api(
            "GET",
            namespace=None if self._all_namespaces else self._namespace,
            url="pods",
            params={
                "labelSelector": self._selector,
                "watch": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(_WATCH_SECONDS),
            },
            stream=True,
            timeout=httpx.Timeout(_REQUEST_SECONDS, read=_WATCH_SECONDS + _REQUEST_SECONDS),
        ) as response:
            async for line in response.aiter_lines():
                event = msgspec.json.decode(line, type=_Event)
                if event.type == "ERROR":
                    failure = msgspec.json.decode(event.object, type=_Failure)
                    if failure.code == _GONE:
                        return
                    raise DiscoveryError(f"the Kubernetes API server answers: {failure.message}")
                if event.type in {"ADDED", "MODIFIED", "DELETED"}:
                    self._apply(event.type, msgspec.json.decode(event.object, type=Pod))

    def _apply(self, change: str, pod: Pod) -> None:
        if change == "DELETED":
            self._pods.pop(pod.metadata.uid, None)
        else:
            self._pods[pod.metadata.uid] = pod
        self._report_pods()

    def _report_pods(self) -> None:
        found = []
        for pod in self._pods.values():
            for name, endpoint in engines_of(pod, self._port):
                within = f"{pod.metadata.namespace}/" if self._all_namespaces else ""
                found.append(Found(within + name, endpoint))
        self._report(sorted(found))
