"""The demo's requests."""

import sys
from pathlib import Path

import pytest

from engine_stub.entrypoints.workload import PROMPTS
from engine_stub.train import prompts


def test_the_file_of_the_demo_is_what_the_command_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "prompts.jsonl"
    monkeypatch.setattr(sys, "argv", ["prompts", "--out", str(out)])
    prompts.main()
    assert out.read_bytes() == PROMPTS.read_bytes()
