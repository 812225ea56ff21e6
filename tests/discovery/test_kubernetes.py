"""Engines in the pods of a cluster, with the real client against a server that speaks the API."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.cli.found_engines import FoundSessions
from seqtop.discovery import DiscoveryError, Found
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from tests.support.events import engine_info
from tests.support.kubernetes_api import (
    PORT,
    KubernetesApi,
    address,
    pod,
    serving,
    write_kubeconfig,
)
from tests.support.waiting import wait_until

pytest.importorskip("kr8s", reason="needs the extra kubernetes")

from seqtop.discovery.kubernetes import Kubernetes, Pod, engines_of


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a server that is away: a second otherwise, and two."""
    monkeypatch.setattr("seqtop.discovery.kubernetes._PAUSE_SECONDS", 0.05)
    monkeypatch.setattr("seqtop.discovery._RETRY_SECONDS", 0.05)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    api = KubernetesApi()
    with serving(api) as port:
        write_kubeconfig(tmp_path / "config", port)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield api


@contextlib.contextmanager
def following(selector: str = "app=vllm", **options: Any) -> Iterator[Kubernetes]:
    discovery = Kubernetes(selector, **options)
    discovery.start(timeout=60)
    try:
        yield discovery
    finally:
        discovery.close()


def read(own: dict[str, Any]) -> Pod:
    return msgspec.convert(own, Pod)


@pytest.mark.parametrize(
    ("changes", "endpoints"),
    [
        ({}, ["tcp://10.1.2.3:5557"]),
        ({"env": []}, []),
        ({"env": [{"name": "SEQTOP_BIND", "value": "tcp://127.0.0.1:5557"}]}, []),
        ({"env": [{"name": "SEQTOP_BIND", "value": "dormant"}]}, []),
        ({"env": [{"name": "SEQTOP_BIND", "value": "tcp://0.0.0.0:99999"}]}, []),
        ({"env": [{"name": "SEQTOP_BIND", "valueFrom": {"fieldRef": {}}}]}, []),
        (
            {"env": [], "ports": [{"name": "seqtop", "containerPort": 6001}]},
            ["tcp://10.1.2.3:6001"],
        ),
        ({"env": [], "ports": [{"name": "http", "containerPort": 8000}]}, []),
        ({"phase": "Succeeded"}, []),
        ({"deleted": True}, ["tcp://10.1.2.3:5557"]),
    ],
)
def test_a_pod_says_where_its_engine_publishes(
    changes: dict[str, Any], endpoints: list[str]
) -> None:
    own = read(pod("vllm-0", "10.1.2.3", **changes))
    assert [engine.endpoint for engine in engines_of(own)] == endpoints


def test_an_address_of_ipv6_is_bracketed() -> None:
    assert [*engines_of(read(pod("a", "fd00::7")))] == [Found("a", "tcp://[fd00::7]:5557")]


def test_a_given_port_counts_whatever_the_pod_says() -> None:
    own = read(pod("a", "10.1.2.3", env=[]))
    assert [*engines_of(own, 7000)] == [Found("a", "tcp://10.1.2.3:7000")]


def test_engines_of_one_pod_have_the_names_of_their_containers() -> None:
    own = pod("a", "10.1.2.3")
    second = {"name": "decode", "env": [{"name": "SEQTOP_BIND", "value": "tcp://0.0.0.0:6000"}]}
    own["spec"]["containers"].append(second)
    assert [engine.name for engine in engines_of(read(own))] == ["a/vllm", "a/decode"]


def test_pods_come_move_and_go(api: KubernetesApi) -> None:
    api.set(pod("vllm-0", "10.0.0.1"))
    api.set(pod("router", "10.0.0.9", labels={"app": "router"}))
    api.set(pod("vllm-0", "10.0.0.8", namespace="other"))
    with following() as discovery:
        assert discovery.found == (Found("vllm-0", "tcp://10.0.0.1:5557"),)
        api.set(pod("vllm-1", None))
        api.set(pod("vllm-1", "10.0.0.2"))
        wait_until(lambda: len(discovery.found) == 2)
        assert [*discovery.found][1] == Found("vllm-1", "tcp://10.0.0.2:5557")
        api.delete("vllm-0")
        wait_until(lambda: [engine.name for engine in discovery.found] == ["vllm-1"])
        api.set(pod("vllm-0", "10.0.0.3"))
        wait_until(lambda: Found("vllm-0", "tcp://10.0.0.3:5557") in discovery.found)
        assert api.num_lists == 1
        assert not discovery.problem


def test_all_namespaces_are_told_apart(api: KubernetesApi) -> None:
    api.set(pod("vllm-0", "10.0.0.1"))
    api.set(pod("vllm-0", "10.0.0.2", namespace="other"))
    with following(all_namespaces=True) as discovery:
        assert [engine.name for engine in discovery.found] == ["llm/vllm-0", "other/vllm-0"]


@pytest.mark.parametrize("by_status", [False, True])
def test_changes_after_a_forgotten_version_are_listed(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, *, by_status: bool
) -> None:
    """`410 Gone`: the pod that went meanwhile must not stay."""
    monkeypatch.setattr("seqtop.discovery._RETRY_SECONDS", 600.0)  # it is no failure
    api.is_gone_by_status = by_status
    api.set(pod("vllm-0", "10.0.0.1"))
    with following() as discovery:
        api.delete("vllm-0")
        api.set(pod("vllm-1", "10.0.0.2"))
        api.forget()
        api.end_watches()
        wait_until(lambda: [engine.name for engine in discovery.found] == ["vllm-1"])
        wait_until(lambda: api.num_lists > 1)
        assert not discovery.problem


def test_a_server_that_is_away_changes_nothing_until_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = KubernetesApi()
    api.set(pod("vllm-0", "10.0.0.1"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with contextlib.ExitStack() as stack:
        with serving(api) as port:
            write_kubeconfig(tmp_path / "config", port)
            discovery = stack.enter_context(following())
        api.delete("vllm-0")
        wait_until(lambda: "cannot be reached" in discovery.problem)
        assert discovery.found == (Found("vllm-0", "tcp://10.0.0.1:5557"),)
        stack.enter_context(serving(api, port))
        wait_until(lambda: not discovery.found)
        assert not discovery.problem


def test_refusals_are_told_in_the_words_of_the_server(api: KubernetesApi) -> None:
    api.refusal = 403, 'pods is forbidden: User "me" cannot list resource "pods"'
    with pytest.raises(DiscoveryError, match="answers: pods is forbidden"):
        Kubernetes("app=vllm").start(timeout=60)


def test_no_cluster_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(DiscoveryError, match="neither a kubeconfig"):
        Kubernetes("app=vllm").start(timeout=60)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (None, "no pod in namespace llm matches app=vllm"),
        (pod("a", None), "1 pod in namespace llm match app=vllm, but none is running"),
        (
            pod("a", "10.0.0.1", env=[{"name": "SEQTOP_BIND", "value": "tcp://127.0.0.1:5557"}]),
            "pod a publishes at tcp://127.0.0.1:5557, which only the pod itself reaches",
        ),
        (pod("a", "10.0.0.1", env=[]), "but none has the variable SEQTOP_BIND or a port named"),
    ],
)
def test_the_reason_is_told_if_none_is_found(
    api: KubernetesApi, own: dict[str, Any] | None, said: str
) -> None:
    if own is not None:
        api.set(own)
    with following() as discovery:
        assert not discovery.found
        assert said in discovery.explain_none()


def test_an_engine_is_followed_to_the_address_of_its_next_pod(api: KubernetesApi) -> None:
    """A stateful set: the pod that follows has the same name, and another address."""
    first, second = address(1), address(2)
    with contextlib.ExitStack() as stack:
        info = engine_info(incarnation="first")
        engine = MessagePublisher(f"tcp://{first}:{PORT}", info, EngineState())
        engine.__enter__()
        api.set(pod("vllm-0", first))
        found = FoundSessions(stack.enter_context(following()), stack)
        (session,) = found.take_new()
        session.set_subscribed(True)  # as the app does
        wait_until(lambda: session.connection.state is ConnectionState.LIVE)
        assert session.name == "vllm-0"
        api.delete("vllm-0")
        engine.__exit__(None, None, None)
        gone = (ConnectionState.LOST, ConnectionState.STOPPED)
        wait_until(lambda: not found.take_new() and session.connection.state in gone)
        info = engine_info(incarnation="second")
        stack.enter_context(MessagePublisher(f"tcp://{second}:{PORT}", info, EngineState()))
        api.set(pod("vllm-0", second))
        wait_until(
            lambda: not found.take_new() and session.connection.state is ConnectionState.LIVE
        )
        assert session.connection.endpoint == f"tcp://{second}:{PORT}"
        with session.lock:
            assert session.state.info == info
