"""Engines in a file of targets."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqtop.discovery import DiscoveryError, Found
from seqtop.discovery.targets_file import TargetsFile
from tests.support.waiting import wait_until

GROUPS = [
    {"targets": ["10.0.0.1:5557", "10.0.0.2:5557"], "labels": {"job": "vllm", "instance": "x"}},
    {"targets": ["[fd00::1]:5557"], "labels": {"instance": "decode"}},
    {"targets": ["tcp://10.0.0.4:5557"]},
]
FOUND = [
    Found("", "tcp://10.0.0.1:5557"),
    Found("", "tcp://10.0.0.2:5557"),
    Found("decode", "tcp://[fd00::1]:5557"),
    Found("", "tcp://10.0.0.4:5557"),
]


def found_in(path: Path, content: str, **options: Any) -> list[Found]:
    path.write_text(content)
    discovery = TargetsFile(path, **options)
    discovery.start()
    discovery.close()
    return [*discovery.found]


def test_groups_in_json(tmp_path: Path) -> None:
    assert found_in(tmp_path / "targets.json", json.dumps(GROUPS)) == FOUND


def test_groups_in_yaml(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="needs PyYAML")
    text = "- targets: ['10.0.0.1:5557', 'a.example:80']\n  labels: {job: vllm}\n"
    assert found_in(tmp_path / "targets.yml", text) == [
        Found("", "tcp://10.0.0.1:5557"),
        Found("", "tcp://a.example:80"),
    ]


def test_a_port_replaces_those_of_the_metrics(tmp_path: Path) -> None:
    found = found_in(tmp_path / "targets.json", json.dumps(GROUPS), port=6001)
    assert [engine.endpoint.rpartition(":")[2] for engine in found] == ["6001"] * 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is not a file of targets"),
        ('{"targets": []}', "is not a file of targets: Expected `array`"),
        ('[{"labels": {}}]', "missing required field `targets`"),
        ('[{"targets": ["vllm"]}]', "'vllm' is not an endpoint"),
        ('[{"targets": ["vllm:0"]}]', "needs a host and a port"),
        ("\udcff", "is not a file of targets"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "targets.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DiscoveryError) as raised:
        TargetsFile(path).start()
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


def test_no_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="No such file"):
        TargetsFile(tmp_path / "none.json").start()


def test_changes_are_followed_and_damage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetsFile, "_SECONDS", 0.05)
    monkeypatch.setattr("seqtop.discovery._RETRY_SECONDS", 0.05)
    path = tmp_path / "targets.json"
    path.write_text(json.dumps(GROUPS[:1]))
    discovery = TargetsFile(path)
    discovery.start()
    try:
        path.write_text("[")
        wait_until(lambda: discovery.problem)
        assert [*discovery.found] == FOUND[:2]
        path.write_text(json.dumps(GROUPS[1:]))
        wait_until(lambda: [*discovery.found] == FOUND[2:])
        assert not discovery.problem
    finally:
        discovery.close()
