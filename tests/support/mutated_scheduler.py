"""Copies of the bundled engine with a fault in the source of its scheduler."""

import ast
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import engine_stub

_SOURCE = Path(engine_stub.__file__).parent
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""The operator that takes the place of each."""
_SWAPPED_NAMES = {"min": "max", "max": "min", "reversed": "list"}


class Mutant(NamedTuple):
    """A fault: a piece of the source that is in it once, and what takes its place."""

    name: str
    module: str
    """The name of a module in `engine_stub/core/`."""
    old: str
    new: str


class OperatorMutant(NamedTuple):
    """A fault: an operator, a small number or a function that is another one."""

    name: str
    module: str
    source: str
    """The source of the module with the fault."""


def copy_package(folder: Path) -> Path:
    """Makes a copy of the package, whose files are links; returns its folder.

    A Python that starts in `folder` runs it, since it looks for modules there first.
    """
    package = folder / "engine_stub"
    shutil.copytree(
        _SOURCE, package, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
    )
    return package


@contextmanager
def applied(package: Path, mutant: Mutant | OperatorMutant) -> Iterator[None]:
    """Applies a fault to a copy of the package, and takes it back."""
    original = _SOURCE / "core" / f"{mutant.module}.py"
    path = package / "core" / original.name
    compiled = Path(cache_from_source(str(path)))
    path.unlink()
    path.write_text(_changed(mutant, original), encoding="utf-8")
    compiled.unlink(missing_ok=True)
    try:
        yield
    finally:
        path.unlink()
        path.symlink_to(original)
        compiled.unlink(missing_ok=True)


def _changed(mutant: Mutant | OperatorMutant, original: Path) -> str:
    if isinstance(mutant, OperatorMutant):
        return mutant.source
    text = original.read_text(encoding="utf-8")
    count = text.count(mutant.old)
    assert count == 1, f"{mutant.name}: its piece of {original.name} is there {count} times"
    return text.replace(mutant.old, mutant.new)


def operator_mutants(module: str, without: frozenset[str]) -> Iterator[OperatorMutant]:
    """Yields a fault for each operator, small number, and function such as `min` of a module.

    Args:
        module: The name of a module in `engine_stub/core/`.
        without: Names of functions that are left as they are.
    """
    text = (_SOURCE / "core" / f"{module}.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    num_places = sum(1 for _ in _places(ast.parse(text), without))
    for number in range(num_places):
        tree = ast.parse(text)
        line = _change([*_places(tree, without)][number])
        yield OperatorMutant(
            f"{module}.py, line {line}, {number}: {lines[line - 1].strip()}",
            module,
            ast.unparse(tree),
        )


def _places(tree: ast.AST, without: frozenset[str]) -> Iterator[ast.expr | ast.AugAssign]:
    """Yields the nodes of a module that can be changed, in functions only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in without:
            for statement in node.body:
                yield from _changeable(statement)
        elif isinstance(node, ast.ClassDef):
            yield from _places(node, without)


def _changeable(statement: ast.stmt) -> Iterator[ast.expr | ast.AugAssign]:
    for node in ast.walk(statement):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED:
                yield node
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
                yield node
            case ast.BinOp(op=ast.Add() | ast.Sub()) | ast.AugAssign(op=ast.Add() | ast.Sub()):
                yield node
            case ast.Constant(value=0 | 1 | 2) | ast.Name(id="min" | "max" | "reversed"):
                yield node


def _change(node: ast.expr | ast.AugAssign) -> int:
    """Changes a node of a tree; returns its line."""
    match node:
        case ast.Compare():
            node.ops = [_SWAPPED[type(node.ops[0])]()]  # type: ignore[list-item]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            node.op = _SWAPPED[type(node.op)]()  # type: ignore[assignment]
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.Name():
            node.id = _SWAPPED_NAMES[node.id]
    return node.lineno
