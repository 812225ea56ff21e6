"""Engines in the actors of Ray; `tests/release/ray_cluster.py` runs a cluster."""

from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.discovery import Found

pytest.importorskip("ray.util.state", reason="needs the extra ray")

from seqtop.discovery.ray_actors import engines_of

HERE, THERE = "10.0.0.1", "10.0.0.2"
NODES = {"here": HERE, "there": THERE}


def actor(name: str, bind: str, node: str = "there", namespace: str = "llm") -> Any:
    environment = f'{{"env_vars": {{"SEQTOP_BIND": "{bind}"}}}}'
    return SimpleNamespace(
        name=name, node_id=node, ray_namespace=namespace, serialized_runtime_env=environment
    )


@pytest.mark.parametrize(
    ("bind", "node", "endpoint"),
    [
        ("tcp://0.0.0.0:5557", "there", "tcp://10.0.0.2:5557"),
        ("tcp://127.0.0.1:5557", "there", None),
        ("tcp://127.0.0.1:5557", "here", "tcp://127.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "here", "tcp://127.0.0.1:5557"),
        ("ipc:///tmp/a", "here", "ipc:///tmp/a"),
        ("ipc:///tmp/a", "there", None),
        ("dormant", "here", None),
        ("tcp://0.0.0.0:5557", "gone", None),
    ],
)
def test_an_actor_is_reached_by_its_node(bind: str, node: str, endpoint: str | None) -> None:
    found = engines_of([actor("a", bind, node)], NODES, HERE)
    assert [engine.endpoint for engine in found] == ([endpoint] if endpoint else [])


def test_actors_without_a_name_or_the_variable_are_no_engines() -> None:
    others = [actor("", "tcp://0.0.0.0:1"), actor("b", "x"), actor("c", "x"), actor("d", "x")]
    environments = ("{}", None, '{"env_vars": 3}')
    for other, environment in zip(others[1:], environments, strict=True):
        other.serialized_runtime_env = environment
    assert engines_of(others, NODES, HERE) == []


def test_the_same_name_in_two_namespaces() -> None:
    actors = [actor("a", "tcp://0.0.0.0:1"), actor("a", "tcp://0.0.0.0:3", namespace="other")]
    assert engines_of(actors, NODES, HERE) == [
        Found("llm/a", "tcp://10.0.0.2:1"),
        Found("other/a", "tcp://10.0.0.2:3"),
    ]
