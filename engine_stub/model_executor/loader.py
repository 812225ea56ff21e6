"""Loads and saves a decoder's weights as Hugging Face safetensors files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine_stub.model_executor.model import WHOLE, Decoder
from engine_stub.model_executor.model_config import ModelConfig, read_model_file
from engine_stub.model_executor.stages import Stage
from engine_stub.platforms import platform_of

# One fused parameter holds the rows of several checkpoint tensors, in this order.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


class WeightsError(ValueError):
    """The files of a model directory do not contain the tensors that its config requires."""


def load_model(
    path: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    stage: Stage = WHOLE,
    embeds: bool = False,
) -> Decoder:
    """Builds the decoder that ``path/config.json`` describes, and loads its weights.

    Reads ``model.safetensors``, or the shards that ``model.safetensors.index.json`` lists, but only
    the tensors of `stage`.

    Args:
        path: The model's directory.
        device: The device to load to.
        dtype: The type to convert the weights to.
        stage: The part of the model to load.
        embeds: Whether to load the embedding for any stage.

    Raises:
        FileNotFoundError: There is no config or no safetensors file.
        UnsupportedModel: The engine cannot run this model.
        WeightsError: Tensors are missing, unexpected, unreadable or of another shape.
        ValueError: The device's kernels are not installed.
    """
    config = ModelConfig.from_pretrained(path)
    with torch.device("meta"):
        kernels = platform_of(device).layer_kernels()
        decoder = Decoder(config, stage, embeds=embeds, kernels=kernels)
        whole = Decoder(config)
    files = _file_of_tensor(path)
    _check_names(path, config, whole, set(files))
    expected = {name: _checkpoint_names(name) for name in decoder.state_dict()}
    tensors = _read_tensors(files, {part for parts in expected.values() for part in parts})
    state = {
        name: torch.cat([tensors.pop(part) for part in parts]).to(device=device, dtype=dtype)
        for name, parts in expected.items()
    }
    try:
        decoder.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise WeightsError(f"{path}: {error}") from error
    return decoder.to(device).requires_grad_(False).eval()


def save_pretrained(decoder: Decoder, path: Path, dtype: torch.dtype) -> None:
    """Writes ``config.json`` and ``model.safetensors`` in the format of transformers.

    Creates the directory. Tied embeddings are written once.
    """
    path.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for name, parameter in decoder.state_dict().items():
        parts = _checkpoint_names(name)
        rows = parameter.detach().to(device="cpu", dtype=dtype)
        sizes = _row_counts(decoder.config, name, rows.shape[0])
        for part, block in zip(parts, rows.split(sizes), strict=True):
            tensors[part] = block.contiguous()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = dataclasses.replace(decoder.config, torch_dtype=str(dtype).removeprefix("torch."))
    config_text = json.dumps(config.to_hf(), indent=2) + "\n"
    (path / "config.json").write_text(config_text, encoding="utf-8")


def _checkpoint_names(name: str) -> tuple[str, ...]:
    """Returns the checkpoint tensors whose rows make up the parameter `name`."""
    prefixed = name if name.startswith("lm_head.") else f"model.{name}"
    for fused, parts in _FUSED.items():
        if f".{fused}." in name:
            return tuple(prefixed.replace(fused, part) for part in parts)
    return (prefixed,)


def _row_counts(config: ModelConfig, name: str, rows: int) -> list[int]:
    """Returns the number of rows of each checkpoint tensor in the parameter `name`."""
    if ".qkv_proj." in name:
        q_rows = config.num_attention_heads * config.head_dim
        kv_rows = config.num_key_value_heads * config.head_dim
        return [q_rows, kv_rows, kv_rows]
    if ".gate_up_proj." in name:
        return [config.intermediate_size, config.intermediate_size]
    return [rows]


def _safetensors_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            weight_map = json.loads(read_model_file(index))["weight_map"]
            return [path / _own_name(name) for name in sorted(set(weight_map.values()))]
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise WeightsError(f"{index} is not a readable index: {error}") from error
    single = path / "model.safetensors"
    if single.is_file():
        return [single]
    raise FileNotFoundError(
        f"{path} holds neither model.safetensors nor model.safetensors.index.json"
    )


def _own_name(name: str) -> str:
    """Returns the name of a file in the model's directory; raises ValueError for any other path."""
    if not name or Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r:.80} is not the name of a file beside it")
    return name


def _file_of_tensor(path: Path) -> dict[str, Path]:
    """Returns the file of each tensor."""
    files: dict[str, Path] = {}
    for file in _safetensors_files(path):
        if not file.is_file():  # opening a pipe would wait for somebody to write to it
            raise WeightsError(f"{path} lacks {file.name}, which its index lists")
        try:
            with safe_open(file, framework="pt") as shard:
                files.update(dict.fromkeys(shard.keys(), file))
        except SafetensorError as error:
            raise WeightsError(f"{file} is not a readable safetensors file: {error}") from error
    return files


def _read_tensors(files: dict[str, Path], names: set[str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in sorted({files[name] for name in names}):
        with safe_open(file, framework="pt") as shard:
            for name in names.intersection(shard.keys()):
                tensors[name] = shard.get_tensor(name)
    return tensors


def _check_names(path: Path, config: ModelConfig, whole: Decoder, names: set[str]) -> None:
    """Raises `WeightsError` that lists every missing and every unexpected tensor."""
    if config.tie_word_embeddings:
        # Some checkpoints contain the shared matrix a second time, under the head's name.
        names.discard("lm_head.weight")
    wanted = {part for name in whole.state_dict() for part in _checkpoint_names(name)}
    present = {name for name in names if not name.endswith("rotary_emb.inv_freq")}
    problems = [
        f"{kind}: {', '.join(sorted(names))}"
        for kind, names in (("missing", wanted - present), ("unexpected", present - wanted))
        if names
    ]
    if problems:
        raise WeightsError(f"{path} does not fit its config.json; {'; '.join(problems)}")
