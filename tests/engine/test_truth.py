"""Nobody asks a part of a request for its truth where ``is not None`` is meant: an empty one is
false, so it would be left out before the first token."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import mlxgen
from mlxgen.engine.request.request import Request

PARTS = {
    name
    for name, kind in get_type_hints(Request).items()
    for each in get_args(kind)
    if each is not NoneType and hasattr(each, "__len__") and each.__module__.startswith("mlxgen.")
} - {"thinking", "steering"}  # which are tuples of a fixed length
ROOMS = ("engine", "engine/request", "engine/step", "programs")
"""Those that know a request's parts."""


def conditions(tree: ast.AST) -> Iterator[ast.expr]:
    """What is asked for its truth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.BoolOp):
            yield from node.values
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node.operand
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def named(tested: ast.expr) -> str | None:
    if isinstance(tested, ast.Name):
        return tested.id
    return tested.attr if isinstance(tested, ast.Attribute) else None


def faults(source: str) -> list[int]:
    return [each.lineno for each in conditions(ast.parse(source)) if named(each) in PARTS]


def test_parts_are_asked_whether_they_are_there() -> None:
    assert {"healer", "constraint", "counts"} <= PARTS
    assert faults("twin = part.fork() if healer and x else None") == [1]
    assert faults("if not request.counts: pass") == [1]
    assert not faults("if closing is not None and len(counts): pass")
    found = [
        f"{path}:{line}"
        for room in ROOMS
        for path in sorted((Path(mlxgen.__file__).parent / room).glob("*.py"))
        for line in faults(path.read_text(encoding="utf-8"))
    ]
    assert not found
