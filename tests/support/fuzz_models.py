"""Model directories with mutated JSON files, given to an engine that starts with them."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.processing.chat_template import ChatTemplate
from seqtop.sequence import SamplingParams
from tests.support.checkpoints import make_checkpoint
from tests.support.fuzz import Feed, require_reason
from tests.support.mutation import HOSTILE, Pool, bytewise, plausible

_FILES = (
    "config.json",
    "config.json",
    "config.json",
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


_POOL = Pool(["linear", "yarn", "full_attention", "a", 1, 2, 4, 64, 256])


class _Directory:
    """A model directory, in which one file at a time is changed and put back."""

    def __init__(self, choose: random.Random, path: Path) -> None:
        self._choose = choose
        name = choose.choice(("llama-llama3", "mistral-sliding", "qwen2-yarn", "qwen2-sliding"))
        self._path = make_checkpoint(name, path / "model")
        config = {"chat_template": [{"name": "default", "template": "x"}], "bos_token": "<eos>"}
        (self._path / "tokenizer_config.json").write_text(json.dumps(config))

    def feed(self) -> bool:
        choose = self._choose
        file = self._path / choose.choice(_FILES)
        whole = file.read_bytes()
        tree = json.loads(whole)
        match choose.randrange(10):
            case 0:
                data = bytewise(choose, whole)
            case 1 | 2:
                tree[choose.choice(list(tree))] = self._hostile()
                data = json.dumps(tree).encode()
            case _:
                data = json.dumps(plausible(choose, tree, _POOL, most=2)).encode()
        file.write_bytes(data)
        try:
            return self._start()
        except Exception as error:
            raise AssertionError(f"{error!r} from {file.name} {data[:2_000]!r}") from error
        finally:
            file.write_bytes(whole)

    def _hostile(self) -> Any:
        value = self._choose.choice(HOSTILE)
        return value if value is None or isinstance(value, str | int | float | list) else "x"

    def _start(self) -> bool:
        """Starts an engine and generates a token; returns whether the model was accepted."""
        try:
            # The command line reports these in a sentence.
            engine = LLMEngine(
                EngineConfig(model=self._path, device="cpu", block_size=4, num_gpu_blocks=64)
            )
            ChatTemplate.from_pretrained(self._path)
        except (ValueError, OSError) as error:
            require_reason(error)
            return False
        try:
            engine.generate(["once"], SamplingParams(max_tokens=2))
        except ValueError:  # a tokenizer whose tokens the model does not have
            return True
        finally:
            engine.close()
        return True


@contextlib.contextmanager
def start(choose: random.Random) -> Iterator[Feed]:
    """A directory with a tiny model."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="sq") as directory:
        yield _Directory(choose, Path(directory)).feed
