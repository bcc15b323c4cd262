"""A training script as its text: calls with the branches that they are in, names with what they are assigned.

Nothing is run. `Script` is filled by one walk over the syntax tree; `values` works out what expressions are worth.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.reading import read_text

MOST_FILES = 8
"""Most files beside the script that are read for the classes which it imports."""
Guards = tuple[tuple[ast.expr, bool], ...]
"""Conditions of the branches around a line, with the value that each must have."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A value that a name or an attribute is assigned.

    value   None: something that is not worked out, as of a loop
    target  what is assigned to, as text; "" for the default of a setting
    """

    value: ast.expr | None
    line: int
    guards: Guards
    scope: Scope
    target: str = ""


@dataclass(slots=True, eq=False)
class Scope:
    """The module or a function, with what its names are assigned."""

    parent: Scope | None = None
    function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    of_class: str = ""
    names: dict[str, list[Binding]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call. `name` is dotted, its first part as it was imported; `target` the name or attribute it is assigned to."""

    node: ast.Call
    name: str
    scope: Scope
    guards: Guards
    target: str

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def line(self) -> int:
        return self.node.lineno

    def argument(self, word: str, place: int = -1) -> ast.expr | None:
        """The argument of a name, or at a place; None where it is not given."""
        for each in self.node.keywords:
            if each.arg == word:
                return each.value
        plain = 0 <= place < len(self.node.args) and not any(isinstance(a, ast.Starred) for a in self.node.args)
        return self.node.args[place] if plain else None


@dataclass(slots=True, eq=False)
class Script:
    """The text of a file.

    `scopes` are those of functions, `attributes` what is assigned to `x.NAME` of any x, `items` to `x["NAME"]`.
    """

    path: Path
    tree: ast.Module
    imported: dict[str, str] = field(default_factory=dict)
    scope: Scope = field(default_factory=Scope)
    scopes: list[Scope] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)
    items: dict[str, list[tuple[str, Binding]]] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    loops: list[tuple[ast.For, Scope, Guards]] = field(default_factory=list)
    beside: dict[str, Script] = field(default_factory=dict)
    """Files of the same folder that the script imports from, by the name of the module."""

    def dotted(self, node: ast.expr) -> str:
        """The dotted name of an expression, its first part as it was imported; "" for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.imported.get(node.id, node.id))
        return ".".join(reversed(parts))

    def files(self) -> Iterator[Script]:
        yield self
        yield from self.beside.values()


def read_script(path: str | Path) -> Script:
    """The script in a file, with the files beside it that it imports from. Raises DataError for what is no Python."""
    path = Path(path)
    script = _read(path)
    for module in dict.fromkeys(name.partition(".")[0] for name in script.imported.values()):
        near = path.parent / f"{module}.py"
        if module.isidentifier() and len(script.beside) < MOST_FILES and near != path and near.is_file():
            script.beside[module] = _read(near)
    return script


def _read(path: Path) -> Script:
    text = read_text(path)
    try:
        script = Script(path, ast.parse(text))
        _Walk(script).block(script.tree.body, script.scope, (), "")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise DataError(f"file {show(str(path))}{line} is no Python that can be read; correct it") from None
    return script


class _Walk:
    """Fills a `Script`, statement by statement."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def block(self, body: list[ast.stmt], scope: Scope, guards: Guards, of_class: str) -> None:
        for node in body:
            self.statement(node, scope, guards, of_class)

    def statement(self, node: ast.stmt, scope: Scope, guards: Guards, of_class: str) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._function(node, scope, guards, of_class)
        elif isinstance(node, ast.ClassDef):
            self.script.classes[node.name] = node
            self.block(node.body, Scope(scope, None, node.name), guards, node.name)
        elif isinstance(node, ast.If):
            self._calls(node.test, scope, guards)
            self.block(node.body, scope, (*guards, (node.test, True)), of_class)
            self.block(node.orelse, scope, (*guards, (node.test, False)), of_class)
        else:
            self._plain(node, scope, guards, of_class)

    def _plain(self, node: ast.stmt, scope: Scope, guards: Guards, of_class: str) -> None:
        """A statement without branches; of one with a body (with, for, try) the body is walked in turn."""
        target = ""
        if isinstance(node, ast.Assign):
            for each in node.targets:
                self._assign(each, node.value, scope, guards)
            target = _name(node.targets[0])
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, scope, guards)
            target = _name(node.target)
        elif isinstance(node, ast.AugAssign):
            new = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
            self._assign(node.target, new, scope, guards)
        elif isinstance(node, ast.For):
            self._assign(node.target, None, scope, guards)
            self.script.loops.append((node, scope, guards))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, item.context_expr, scope, guards)
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.stmt):
                self.statement(inner, scope, guards, of_class)
            elif isinstance(inner, ast.expr):
                self._calls(inner, scope, guards, target)
            elif isinstance(inner, ast.withitem):
                self._calls(inner.context_expr, scope, guards, _name(inner.optional_vars))
            elif isinstance(inner, (ast.ExceptHandler, ast.match_case)):
                self.block(inner.body, scope, guards, of_class)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        names = self.script.imported
        if isinstance(node, ast.Import):
            for each in node.names:
                name = each.asname or each.name.partition(".")[0]
                names[name] = each.name if each.asname else name
        elif node.module:
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, guards: Guards, of_class: str
    ) -> None:
        self.script.functions.setdefault(node.name, node)
        for each in node.decorator_list:
            self._calls(each, scope, guards)
        inner = Scope(scope, node, of_class)
        self.script.scopes.append(inner)
        self.block(node.body, inner, guards, of_class)

    def _assign(self, target: ast.expr, value: ast.expr | None, scope: Scope, guards: Guards) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(values):
                values = [*value.elts]
            for each, one in zip(target.elts, values, strict=True):
                self._assign(each, one, scope, guards)
            return
        binding = Binding(value, target.lineno, guards, scope, ast.unparse(target))
        if isinstance(target, ast.Name):
            scope.names.setdefault(target.id, []).append(binding)
        elif isinstance(target, ast.Attribute):
            self.script.attributes.setdefault(target.attr, []).append(binding)
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            key = str(target.slice.value)
            self.script.items.setdefault(_name(target.value), []).append((key, binding))

    def _calls(self, node: ast.expr, scope: Scope, guards: Guards, target: str = "") -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                at = target if each is node else ""
                self.script.calls.append(Call(each, self.script.dotted(each.func), scope, guards, at))


def _name(node: ast.expr | None) -> str:
    """The last name of a target: model of self.model."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _loaded(node: ast.expr) -> ast.expr:
    """A target as an expression that reads it."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(node.id, ast.Load()), node)
    return node
