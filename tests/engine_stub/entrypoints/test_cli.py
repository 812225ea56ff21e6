"""Every setting of an engine can be given on the command line."""

import dataclasses

import pytest

from engine_stub.config import EngineConfig
from engine_stub.entrypoints.cli import _parser


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineConfig)])
def test_every_setting_is_an_option(name: str) -> None:
    options = _parser().parse_args(["serve"])
    assert getattr(options, name) is None
