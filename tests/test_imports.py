"""Imports between the modules of the package: no cycles, and no private names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import precision_time

PACKAGE = Path(precision_time.__file__).parent


def strongly_connected(imports: dict[str, list[str]]) -> list[set[str]]:
    """Components of more than one module (Tarjan 1972): modules that import one another in a circle."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles = []

    def visit(module: str) -> None:
        index[module] = lowest[module] = len(index)
        stack.append(module)
        for imported in imports[module]:
            if imported not in index:
                visit(imported)
                lowest[module] = min(lowest[module], lowest[imported])
            elif imported in stack:
                lowest[module] = min(lowest[module], index[imported])
        if lowest[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                circles.append(set(stack[at:]))
            del stack[at:]

    for module in imports:
        if module not in index:
            visit(module)
    return circles


def test_circles_are_found() -> None:
    assert strongly_connected({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["a"]}) == [{"b", "c"}]
    assert strongly_connected({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_no_circle_of_imports() -> None:
    """Imports inside functions count, those for type checking alone do not."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("precision_time", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}
    assert len(imports) > 100
    assert strongly_connected(imports) == []


def test_no_private_name_is_imported_from_another_module() -> None:
    private = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {alias.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("precision_time")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert private == []
