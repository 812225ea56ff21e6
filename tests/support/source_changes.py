"""Changes of single operators and constants in the source of a module."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

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
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""The operator that takes the place of each."""
_SWAPPED_NAMES = {"min": "max", "max": "min", "reversed": "list"}


class Place(NamedTuple):
    """An operator, a small constant or a function such as `min`, in the body of a function."""

    line: int
    text: str
    """The source of that line, without indentation."""
    function: int
    """The first line of the outermost function that contains it, with its decorators."""


def places(source: str, without: frozenset[str] = frozenset()) -> list[Place]:
    """Returns the places of a module that can be changed, in the order of the tree.

    Args:
        source: The source of the module.
        without: Names of functions that are left as they are.
    """
    lines = source.splitlines()
    return [
        Place(node.lineno, lines[node.lineno - 1].strip(), function)
        for function, node in _nodes(ast.parse(source), without)
    ]


def changed(source: str, number: int, without: frozenset[str] = frozenset()) -> str:
    """Returns the source of a module with one of its `places` changed."""
    tree = ast.parse(source)
    _, node = list(_nodes(tree, without))[number]
    _change(node)
    return ast.unparse(tree)


def _nodes(
    tree: ast.AST, without: frozenset[str]
) -> Iterator[tuple[int, ast.expr | ast.AugAssign]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in without:
            first = min(own.lineno for own in (node, *node.decorator_list))
            for statement in node.body:
                for own in _changeable(statement):
                    yield first, own
        elif isinstance(node, ast.ClassDef):
            yield from _nodes(node, without)


def _changeable(statement: ast.stmt) -> Iterator[ast.expr | ast.AugAssign]:
    for node in ast.walk(statement):
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _SWAPPED:
                yield node
            case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _SWAPPED:
                yield node
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Constant(value=bool()):
                yield node
            case ast.Constant(value=0 | 1 | 2) | ast.Name(id="min" | "max" | "reversed"):
                yield node


def _change(node: ast.expr | ast.AugAssign) -> None:
    match node:
        case ast.Compare():
            node.ops = [_SWAPPED[type(node.ops[0])]()]  # type: ignore[list-item]
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign():
            node.op = _SWAPPED[type(node.op)]()  # type: ignore[assignment]
        case ast.UnaryOp():
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case ast.Name():
            node.id = _SWAPPED_NAMES[node.id]
