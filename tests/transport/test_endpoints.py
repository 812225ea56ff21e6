"""Validation of endpoints."""

import pytest

from seqtop.transport.endpoints import (
    EndpointError,
    check,
    check_bind,
    local_endpoint,
    reached_at,
    snapshot_endpoint,
    with_scheme,
)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "5557",
        "127.0.0.1:5557",
        "tcp://",
        "tcp://host",
        "tcp://host:0",
        "tcp://h:65535",
        "tcp://[2J",
        "tcp://[::1:5557",
        "x://y",
    ],
)
def test_malformed_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(EndpointError):
        check(endpoint)


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "192.0.2.1", "example.org", "[::]"])
def test_binding_beyond_this_machine_must_be_asked_for(host: str) -> None:
    endpoint = f"tcp://{host}:5557"
    with pytest.raises(EndpointError, match="--insecure"):
        check_bind(endpoint, insecure=False)
    assert check_bind(endpoint, insecure=True) == endpoint


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:5557", "tcp://localhost:1", "tcp://[::1]:5557", "ipc:///tmp/x"]
)
def test_binding_on_this_machine_is_fine(endpoint: str) -> None:
    assert check_bind(endpoint, insecure=False) == endpoint


def test_snapshots_are_served_next_door() -> None:
    assert snapshot_endpoint("tcp://127.0.0.1:5557") == "tcp://127.0.0.1:5558"
    assert snapshot_endpoint("ipc:///tmp/x") == "ipc:///tmp/x.snapshot"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("localhost:5557", "tcp://localhost:5557"),
        ("[::1]:5557", "tcp://[::1]:5557"),
        ("tcp://a:1", "tcp://a:1"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
        ("run.seqtop", "run.seqtop"),
        ("::1", "::1"),
        ("http://a:1", "http://a:1"),
    ],
)
def test_host_and_port_are_a_tcp_endpoint(text: str, endpoint: str) -> None:
    assert with_scheme(text) == endpoint


@pytest.mark.parametrize(
    ("bound", "local"),
    [
        ("tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557"),
        ("tcp://[::]:5557", "tcp://[::1]:5557"),
        ("tcp://192.0.2.1:5557", "tcp://192.0.2.1:5557"),
        ("ipc:///tmp/0.0.0.0:1", "ipc:///tmp/0.0.0.0:1"),
    ],
)
def test_an_engine_on_all_interfaces_is_reached_on_its_own_machine(bound: str, local: str) -> None:
    assert local_endpoint(bound) == local


@pytest.mark.parametrize(
    ("bind", "host", "endpoint"),
    [
        ("tcp://0.0.0.0:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://*:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://[::]:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://10.0.0.1:5557", "10.0.0.1", "tcp://10.0.0.1:5557"),
        ("tcp://localhost:5557", "10.0.0.1", None),
        ("tcp://[::1]:5557", "10.0.0.1", None),
        ("ipc:///tmp/engine", "10.0.0.1", None),
        ("dormant", "10.0.0.1", None),
        ("tcp://0.0.0.0", "10.0.0.1", None),
        ("http://0.0.0.0:80", "10.0.0.1", None),
    ],
)
def test_another_machine_reaches_an_engine_by_its_host(
    bind: str, host: str, endpoint: str | None
) -> None:
    assert reached_at(bind, host) == endpoint
