"""The public names that `docs/api.md` promises, as text: a line for each name and each member."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

API = Path(__file__).parents[2] / "docs" / "api.md"


def modules() -> list[str]:
    """Returns the modules that have a section on the page."""
    return re.findall(r"^## (seqtop[\w.]*)$", API.read_text(encoding="utf-8"), re.MULTILINE)


def names(module: ModuleType) -> list[str]:
    """Returns the names that a module exports, or else those that it defines."""
    if exported := getattr(module, "__all__", None):
        return sorted(exported)
    defined: set[str] = set()
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                defined.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                defined.add(name)
    return sorted(name for name in defined if not name.startswith("_"))


def lines() -> Iterator[str]:
    """Yields a line for each public name, and for each public member of a class."""
    for path in modules():
        module = importlib.import_module(path)
        for name in names(module):
            value = getattr(module, name)
            yield f"{path}.{name}{_parameters(value)}"
            if inspect.isclass(value):
                yield from (f"{path}.{name}.{member}" for member in _members(value))


def _parameters(value: Any) -> str:
    """Returns the parameters of a function or of a constructor; empty for other values."""
    has_fields = inspect.isclass(value) and (
        issubclass(value, msgspec.Struct | enum.Enum | BaseException)
        or dataclasses.is_dataclass(value)
        or inspect.isabstract(value)
        or hasattr(value, "_fields")
        or value.__init__ in {object.__init__, dict.__init__}
    )
    if has_fields or not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    shown = [
        parameter.replace(
            annotation=inspect.Parameter.empty,
            default=... if parameter.default is not parameter.empty else parameter.empty,
        )
        for parameter in inspect.signature(value).parameters.values()
    ]
    return str(inspect.Signature(shown)).replace("Ellipsis", "…")


def _members(cls: type) -> Iterator[str]:
    own = [base for base in cls.__mro__ if base.__module__.startswith("seqtop")]
    fields = {name for base in own for name in inspect.get_annotations(base)}
    for name in sorted(fields | {name for base in own for name in vars(base)}):
        if name.startswith("_"):
            continue
        value = inspect.getattr_static(cls, name, None)
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        yield name + (_parameters(value) if inspect.isfunction(value) else "")
