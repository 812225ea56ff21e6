"""A server that answers as the API server of Kubernetes does, for a list and a watch of pods.

It has versions of resources, watches as chunked JSON lines, bookmarks left out, `410 Gone` for
versions that it has forgotten, and refusals with a `Status`, as the API's documents describe them
(Kubernetes API Concepts, "Efficient detection of changes").
"""

import contextlib
import json
import os
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

PORT = 5557


def address(number: int) -> str:
    """Returns a loopback address that no other process of tests uses."""
    pid = os.getpid()
    return f"127.{pid >> 8 & 255}.{pid & 255}.{number}"


def pod(name: str, ip: str | None, **changes: Any) -> dict[str, Any]:
    """Returns a pod with an engine that binds to all addresses.

    Args:
        name: Its name.
        ip: Its address; none while it does not run.
        changes: `env`, `ports`, `labels`, `phase`, `deleted` or `namespace`, in place of the usual.
    """
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if changes.get("deleted") else {}
    env = changes.get("env", [{"name": "SEQTOP_BIND", "value": f"tcp://0.0.0.0:{PORT}"}])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": changes.get("namespace", "llm"),
            "labels": changes.get("labels", {"app": "vllm"}),
            **deleted,
        },
        "spec": {"containers": [{"name": "vllm", "env": env, "ports": changes.get("ports", [])}]},
        "status": {
            "phase": changes.get("phase", "Running" if ip else "Pending"),
            **({"podIP": ip} if ip else {}),
        },
    }


class _Change(NamedTuple):
    version: int
    kind: str
    pod: dict[str, Any]


class KubernetesApi:
    """The pods of a cluster, and the server that lists them."""

    def __init__(self) -> None:
        self.refusal: tuple[int, str] | None = None
        """A status and a message with which all requests for pods are refused."""
        self.num_lists = 0
        self.is_gone_by_status = False
        """Says that a version is forgotten by the status of the response, not by an event."""
        self._pods: dict[tuple[str, str], dict[str, Any]] = {}
        self._changes: list[_Change] = []
        self._version = self._oldest = 100
        self._changed = threading.Condition()
        self._epoch = 0

    def set(self, wanted: dict[str, Any]) -> None:
        """Creates or changes a pod."""
        key = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        with self._changed:
            old = self._pods.get(key)
            uid = old["metadata"]["uid"] if old else f"uid-{self._version + 1}"
            wanted["metadata"] |= {"uid": uid, "resourceVersion": str(self._version + 1)}
            self._pods[key] = wanted
            self._tell("MODIFIED" if old else "ADDED", wanted)

    def delete(self, name: str, namespace: str = "llm") -> None:
        with self._changed:
            self._tell("DELETED", self._pods.pop((namespace, name)))

    def forget(self) -> None:
        """Ends all watches, and forgets the versions up to now, so that one cannot go on."""
        with self._changed:
            self._version += 1
            self._oldest = self._version
            self._changes.clear()
            self._changed.notify_all()

    def end_watches(self) -> None:
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def _tell(self, kind: str, changed: dict[str, Any]) -> None:
        self._version += 1
        self._changes.append(_Change(self._version, kind, json.loads(json.dumps(changed))))
        self._changed.notify_all()

    def list(self, namespace: str, labels: dict[str, str]) -> dict[str, Any]:
        with self._changed:
            self.num_lists += 1
            items = [own for own in self._pods.values() if _matches(own, namespace, labels)]
            return {
                "apiVersion": "v1",
                "kind": "PodList",
                "metadata": {"resourceVersion": str(self._version)},
                "items": items,
            }

    def watch(self, since: int, namespace: str, labels: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yields the events after a version; ends with the watch."""
        epoch = self._epoch
        while True:
            with self._changed:
                if since < self._oldest:
                    yield {"type": "ERROR", "object": _status(410, "too old resource version")}
                    return
                new = [change for change in self._changes if change.version > since]
                if not new:
                    if self._epoch != epoch or not self._changed.wait(timeout=60):
                        return
                    continue
            for change in new:
                since = change.version
                if _matches(change.pod, namespace, labels):
                    yield {"type": change.kind, "object": change.pod}

    def is_forgotten(self, version: int) -> bool:
        return version < self._oldest


def _matches(own: dict[str, Any], namespace: str, labels: dict[str, str]) -> bool:
    metadata = own["metadata"]
    in_namespace = namespace in ("", metadata["namespace"])
    return in_namespace and labels.items() <= metadata["labels"].items()


def _status(code: int, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message} | {
        "code": code
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        api, url = self.server.api, urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        parts = url.path.strip("/").split("/")
        if parts == ["version"]:
            self._answer(200, {"major": "1", "minor": "33", "gitVersion": "v1.33.1"})
        elif parts[-1] != "pods":
            self._answer(404, _status(404, "the server could not find the requested resource"))
        elif api.refusal is not None:
            self._answer(api.refusal[0], _status(*api.refusal))
        else:
            namespace = parts[3] if len(parts) == 5 else ""
            pairs = [term.partition("=") for term in query["labelSelector"].split(",")]
            labels = {key: value for key, _, value in pairs}
            if query.get("watch") == "true":
                self._watch(int(query["resourceVersion"]), namespace, labels)
            else:
                self._answer(200, api.list(namespace, labels))

    def _watch(self, since: int, namespace: str, labels: dict[str, str]) -> None:
        api = self.server.api
        if api.is_gone_by_status and api.is_forgotten(since):
            self._answer(410, _status(410, "too old resource version"))
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            for event in api.watch(since, namespace, labels):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, api: KubernetesApi, port: int) -> None:
        self.api = api
        self.connections: list[socket.socket] = []
        super().__init__(("127.0.0.1", port), _Handler)


@contextlib.contextmanager
def serving(api: KubernetesApi, port: int = 0) -> Iterator[int]:
    """Serves the API meanwhile; yields the port."""
    server = _Server(api, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for connection in server.connections:  # they would be served on
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        api.end_watches()


def write_kubeconfig(path: Path, port: int, namespace: str = "llm") -> None:
    """Writes a kubeconfig file that names the server."""
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "test", "user": {"token": "secret"}}],
                "contexts": [
                    {
                        "name": "test",
                        "context": {"cluster": "test", "user": "test", "namespace": namespace},
                    }
                ],
            }
        )
    )
