"""Adapters of requests: LoRA weights and prompt adapters."""

from __future__ import annotations

from typing import Any

import msgspec

from seqtop.sequence.errors import SequenceError


class LoRARequest(msgspec.Struct, array_like=True, omit_defaults=True):
    """A LoRA adapter by name, process-wide integer id and path.

    Two requests with the same name are equal and have the same hash.

    Raises:
        SequenceError: No path is given.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_local_path: str | None = None  # the former name of lora_path, still accepted
    long_lora_max_len: int | None = None
    base_model_name: str | None = None
    tensorizer_config_dict: dict[Any, Any] | None = None

    def __post_init__(self) -> None:
        self.lora_path = self.lora_path or self.lora_local_path or ""
        if not self.lora_path:
            raise SequenceError("a LoRA request needs a lora_path")

    @property
    def adapter_id(self) -> int:
        """The process-wide id of the adapter."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """The name of the adapter."""
        return self.lora_name

    @property
    def path(self) -> str:
        """The path of the adapter's weights."""
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, self.__class__) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


class PromptAdapterRequest(msgspec.Struct, array_like=True, omit_defaults=True):
    """A prompt adapter: learned virtual tokens placed before the prompt."""

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int

    @property
    def adapter_id(self) -> int:
        """The process-wide id of the adapter."""
        return self.prompt_adapter_id

    @property
    def name(self) -> str:
        """The name of the adapter."""
        return self.prompt_adapter_name

    @property
    def local_path(self) -> str:
        """The path of the adapter's weights."""
        return self.prompt_adapter_local_path


class UsesAdapters:
    """A mixin with the adapter ids of an object that has adapter requests."""

    __slots__ = ()

    lora_request: LoRARequest | None
    prompt_adapter_request: PromptAdapterRequest | None

    @property
    def lora_int_id(self) -> int:
        """The id of the LoRA adapter; 0 without one."""
        return self.lora_request.lora_int_id if self.lora_request else 0

    @property
    def prompt_adapter_id(self) -> int:
        """The id of the prompt adapter; 0 without one."""
        adapter = self.prompt_adapter_request
        return adapter.prompt_adapter_id if adapter else 0
