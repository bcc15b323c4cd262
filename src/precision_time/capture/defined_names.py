"""The names that a Python file defines, by its text: a file without the function that is asked for is not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from precision_time.errors import DataError
from precision_time.reading import read_text


def defined_names(path: str | Path) -> tuple[str, ...] | None:
    """Names of a module; None where its text does not decide them, or is no Python."""
    try:
        tree = ast.parse(read_text(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError, DataError):
        return None
    names = tuple(dict.fromkeys(_names(tree.body)))
    return None if {"*", "__getattr__"} & set(names) or _by_code(tree) else names


def _by_code(tree: ast.Module) -> bool:
    """Whether lines of the module itself add names to `globals()`."""
    plain = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return any(
        isinstance(node, ast.Attribute) and node.attr == "update" and ast.unparse(node.value) in ("globals()", "vars()")
        for line in plain
        for node in ast.walk(line)
    )


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Names that statements bind, those in branches too."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.expr):
                stored = (n for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
                yield from (each.id for each in stored)
            elif isinstance(inner, (ast.stmt, ast.ExceptHandler)):
                yield from _names([inner] if isinstance(inner, ast.stmt) else inner.body)
