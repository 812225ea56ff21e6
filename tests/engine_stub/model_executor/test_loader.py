"""The loader's messages about model directories that it cannot use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine_stub.model_executor.loader import WeightsError
from tests.support.model_directory import edit_config, load


def edit_tensors(path: Path, remove: tuple[str, ...] = (), **added: Tensor) -> None:
    file = path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name not in remove}
    save_file(tensors | added, file)


def test_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)


def test_no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors"):
        load(directory)


def test_truncated_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        load(directory)


def test_missing_and_unexpected_tensors_come_in_one_error(directory: Path) -> None:
    gone = ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight")
    edit_tensors(directory, gone, extra=torch.zeros(1))
    with pytest.raises(WeightsError) as caught:
        load(directory)
    assert f"missing: {gone[0]}, {gone[1]}; unexpected: extra" in str(caught.value)


def test_wrong_shape_names_the_tensor(directory: Path) -> None:
    edit_config(directory, intermediate_size=20)
    with pytest.raises(WeightsError, match="gate_up_proj"):
        load(directory)


def test_stored_copies_are_accepted(directory: Path) -> None:
    """Checkpoints may repeat tied embeddings and keep the rotary table of old."""
    copies: dict[str, Any] = {
        "lm_head.weight": torch.zeros(32, 16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
    }
    edit_tensors(directory, **copies)
    load(directory)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a\0b", "", ".", 7, None])
def test_an_index_names_only_files_beside_it(directory: Path, name: object) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(WeightsError, match="not a readable index"):
        load(directory)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda _: None])
def test_weights_that_are_no_file_are_missing(
    directory: Path, make: Callable[[Path], None]
) -> None:
    """Nobody may write to a pipe."""
    name = "part.safetensors"
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    make(directory / name)
    with pytest.raises(WeightsError, match=r"lacks part\.safetensors, which its index lists"):
        load(directory)
