"""A directory with a tiny model."""

from pathlib import Path

import pytest
import torch

from engine_stub.model_executor.loader import save_pretrained
from engine_stub.model_executor.model import Decoder
from tests.support.model_directory import CONFIG


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_pretrained(Decoder(CONFIG), tmp_path, torch.float32)
    return tmp_path
