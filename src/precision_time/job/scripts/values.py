"""What expressions of a script are worth, as far as its text decides it: literals, names, defaults of arguments.

A value that the text leaves open is an `Unread` with the reason. `Dotted` is a name that is no value here, such as
torch.bfloat16.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from precision_time.job.scripts.pools import settings_pool
from precision_time.job.scripts.script import Binding, Call, Guards, Scope, Script

_DEEPEST = 60
_LONGEST = 10_000
_LARGEST = 10**18
_ON_GPUS = ("is_bf16_supported", "is_bfloat16_supported", "cuda.is_available")
"""Questions whose answer is yes on the GPUs that are predicted."""
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip
_COMPUTED = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Div, ast.Mod)
_OF_TEXT = frozenset("lower upper strip startswith endswith".split())
_CASTS: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str, "bool": bool}
_SHARED = ("gpu", "world", "device", "nproc", "num_processes")
"""Parts of the names of the number of ranks."""


class Dotted(str):
    """A dotted name of a library or of the script, such as torch.bfloat16."""

    __slots__ = ()


class Unread:
    """A value that the text leaves open. `total`: what all ranks share, where the script divides it by their number."""

    def __init__(self, reason: str, total: Any = None) -> None:
        self.reason, self.total = reason, total

    def __repr__(self) -> str:
        return f"Unread({self.reason!r})"


class Values:
    """Works out expressions of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.assumed: dict[str, str] = {}
        """Questions about the machine that were answered with yes -> the line."""
        self._pool = settings_pool(script)
        self._found: dict[tuple[int, int], Any] = {}
        self._open: set[tuple[int, int]] = set()

    def of(self, node: ast.expr | None, scope: Scope) -> Any:
        """The value of an expression in a scope, or `Unread`."""
        if node is None:
            return Unread("is not given")
        key = (id(node), id(scope))
        if key not in self._found:
            if key in self._open or len(self._open) > _DEEPEST:
                return Unread(f"line {node.lineno}: depends on itself")
            self._open.add(key)
            try:
                value = self._work_out(node, scope)
            finally:
                self._open.discard(key)
            self._found[key] = value
        return self._found[key]

    def argument(self, call: Call, word: str, place: int = -1) -> Any:
        """The value of an argument of a call; `Unread` where it is not given."""
        return self.of(call.argument(word, place), call.scope)

    def keywords(self, call: Call) -> dict[str, Any]:
        """All keywords of a call with their values, those of **mapping too."""
        found: dict[str, Any] = {}
        for each in call.node.keywords:
            value = self.of(each.value, call.scope)
            if each.arg is not None:
                found[each.arg] = value
            elif isinstance(value, dict):
                found |= {str(key): one for key, one in value.items()}
        return found

    def runs(self, guards: Guards, scope: Scope) -> bool:
        """Whether a line under these conditions may run: False only where the text decides against one.

        While a condition itself is worked out, the lines under it have not run.
        """
        for test, wanted in guards:
            if (id(test), id(scope)) in self._open:
                return False
            value = self.of(test, scope)
            if not isinstance(value, Unread) and bool(value) != wanted:
                return False
        return True

    def calls(self) -> list[Call]:
        """The calls that may run, in the order of the text."""
        return sorted(
            (call for call in self.script.calls if self.runs(call.guards, call.scope)), key=lambda call: call.line
        )

    def setting(self, *names: str) -> tuple[str, Any]:
        """The first of these names that is a variable or a default of a setting, and its value."""
        for name in names:
            for bindings in self._of_name(name):
                if bindings:
                    value = self._one(name, bindings)
                    if type(value) in (int, float, str) or isinstance(value, Unread):
                        return name, value
        return "", Unread("is not found")

    def where(self, name: str) -> int:
        """The line of a setting."""
        return next((each.line for bindings in self._of_name(name) for each in bindings), 0)

    def _of_name(self, name: str) -> list[list[Binding]]:
        """What variables of the module, settings, and variables of functions are assigned in lines that may run."""
        inner = [each for scope in self.script.scopes for each in scope.names.get(name, ())]
        found = [self.script.scope.names.get(name, []), self._pool.get(name, []), inner]
        return [[each for each in bindings if self.runs(each.guards, each.scope)] for bindings in found]

    def made(self, node: ast.expr | None, scope: Scope) -> tuple[ast.Call | None, Scope]:
        """The call that made what an expression names, behind .to(...), .cuda() and the like; None where it is none."""
        for _ in range(_DEEPEST):
            if isinstance(node, ast.Call):
                if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
                    node = node.func.value
                    continue
                return node, scope
            bindings = self._bindings(node, scope)
            values = [each for each in bindings if isinstance(each.value, ast.Call)]
            if not values:
                return None, scope
            node, scope = values[0].value, values[0].scope
        return None, scope

    # --- expressions

    def _work_out(self, node: ast.expr, scope: Scope) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._named(node, scope)
        if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp)):
            return self._operation(node, scope)
        if isinstance(node, ast.IfExp):
            test = self.of(node.test, scope)
            return _open(node) if isinstance(test, Unread) else self.of(node.body if test else node.orelse, scope)
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, (ast.List, ast.Tuple, ast.Dict)):
            return self._collection(node, scope)
        if isinstance(node, ast.Subscript):
            return self._item(node, scope)
        if isinstance(node, ast.JoinedStr):
            parts = [self.of(p.value if isinstance(p, ast.FormattedValue) else p, scope) for p in node.values]
            return next((p for p in parts if isinstance(p, Unread)), None) or "".join(map(str, parts))[:_LONGEST]
        return _open(node)

    def _bindings(self, node: ast.expr | None, scope: Scope) -> list[Binding]:
        """What a name or an attribute is assigned in lines that may run."""
        found: list[Binding] = []
        if isinstance(node, ast.Name):
            inner: Scope | None = scope
            while inner is not None and not found:
                in_class = inner.function is None and inner.of_class  # whose methods do not see its names
                found = [] if in_class and inner is not scope else inner.names.get(node.id, [])
                if not found and inner.function is not None and node.id in _parameters(inner.function):
                    return []
                inner = inner.parent
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            found = self.script.attributes.get(node.attr, [])
            found = [each for each in found if each.target == text] or [
                each for each in found if not _changes(text, each.value)
            ]
        return [each for each in found if self.runs(each.guards, each.scope)]

    def _named(self, node: ast.Name | ast.Attribute, scope: Scope) -> Any:
        name = node.id if isinstance(node, ast.Name) else node.attr
        if name == "__name__":
            return "__main__"
        dotted = self.script.dotted(node)
        base = dotted.partition(".")[0]
        if isinstance(node, ast.Name):
            if bindings := self._bindings(node, scope):
                if all(_changes(name, each.value) for each in bindings):
                    bindings = [*bindings, *self._pool.get(name, ())]
                return self._one(name, bindings)
            if (value := self._parameter(name, scope)) is not None:
                return value
        elif base not in self.script.imported.values() and not self._of_library(node):
            pool = [*self._bindings(node, scope), *self._pool.get(name, ())]
            if pool:
                return self._one(name, pool)
        if self._of_library(node) or dotted in self.script.classes or dotted in self.script.functions:
            return Dotted(dotted)
        return _open(node)

    def _of_library(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.script.imported

    def _one(self, name: str, bindings: list[Binding]) -> Any:
        """The value that all assignments agree on; `Unread` where they do not."""
        changed = [each for each in bindings if each.target and _changes(each.target, each.value)]
        kept = [each for each in bindings if each not in changed]
        values = [self.of(each.value, each.scope) if each.value is not None else _loop(each) for each in kept]
        value = next((each for each in values if isinstance(each, Unread)), None)
        if not values:
            return Unread(f"{name} is not found")
        if value is None:
            value = values[0]
            if any(type(each) is not type(value) or each != value for each in values):
                lines = " and ".join(str(each.line) for each in kept[:4])
                value = Unread(f"{name} is assigned in lines {lines}")
        if changed and not isinstance(value, Unread):
            line, shared = changed[0].line, all(_is_shared(each.value) for each in changed)
            value = Unread(f"line {line} changes {name}, {value!r} before", value if shared else None)
        return self._with_items(name, value)

    def _with_items(self, name: str, value: Any) -> Any:
        """A mapping with the items that are assigned to it."""
        if isinstance(value, dict):
            items = self.script.items.get(name, [])
            by_key: dict[str, list[Binding]] = {}
            for key, binding in items:
                if self.runs(binding.guards, binding.scope):
                    by_key.setdefault(key, []).append(binding)
            value = {**value, **{key: self._replaced(key, each, value) for key, each in by_key.items()}}
        return value

    def _replaced(self, key: str, bindings: list[Binding], before: dict[Any, Any]) -> Any:
        """An item that is assigned; `Unread` where the text leaves open whether it is."""
        value = self._one(key, bindings)
        always = any(
            all(not isinstance(self.of(test, each.scope), Unread) for test, _ in each.guards) for each in bindings
        )
        if not always and not isinstance(value, Unread) and before.get(key, value) != value:
            return Unread(f"{key} may be assigned in line {bindings[0].line}")
        return value

    def _parameter(self, name: str, scope: Scope | None) -> Any:
        """The default of a parameter, what the calls of its function give it, or a setting of its name."""
        while scope is not None:
            function = scope.function
            if function is not None:
                names = _parameters(function)
                if name in names:
                    return self._given(name, names.index(name), function, scope)
            scope = scope.parent
        return None

    def _given(self, name: str, place: int, function: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Any:
        given = [
            (found, call.scope)
            for call in self.script.calls
            if call.last == function.name and (found := call.argument(name, place)) is not None
        ]
        if given:
            values = [self.of(*each) for each in given]
            if all(type(each) is type(values[0]) and each == values[0] for each in values):
                return values[0]
            return Unread(f"{name} of {function.name} is given in several ways")
        arguments = function.args
        plain = [*arguments.posonlyargs, *arguments.args]
        defaults: dict[str, ast.expr | None] = dict(
            zip([each.arg for each in plain[len(plain) - len(arguments.defaults) :]], arguments.defaults, strict=True)
        )
        defaults |= {e.arg: d for e, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)}
        if (default := defaults.get(name)) is not None:
            return self.of(default, scope.parent or scope)
        if name in self._pool:
            return self._one(name, self._pool[name])
        return Unread(f"{name} is an argument of {function.name} without a value in the text")

    def _operation(self, node: ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp, scope: Scope) -> Any:
        if isinstance(node, ast.UnaryOp):
            value = self.of(node.operand, scope)
            if isinstance(node.op, ast.Not) and not isinstance(value, Unread):
                return not value
            return -value if isinstance(node.op, ast.USub) and type(value) in (int, float) else _open(node)
        if isinstance(node, ast.BoolOp):
            wanted = isinstance(node.op, ast.Or)
            values = [self.of(each, scope) for each in node.values]
            known = [each for each in values if not isinstance(each, Unread)]
            decided = next((each for each in known if bool(each) is wanted), None)
            if decided is not None:
                return decided
            return _open(node) if len(known) < len(values) else known[-1]
        if isinstance(node, ast.Compare):
            if len(node.ops) != 1:
                return _open(node)
            left, right, kind = node.left, node.comparators[0], node.ops[0]
        else:
            left, right, kind = node.left, node.right, node.op  # type: ignore[assignment]
        return self._binary(node, kind, self.of(left, scope), self.of(right, scope))

    def _binary(self, node: ast.expr, kind: ast.AST, left: Any, right: Any) -> Any:
        if isinstance(left, Unread) or isinstance(right, Unread):
            if isinstance(kind, (ast.FloorDiv, ast.Div)) and not isinstance(left, Unread) and _is_shared(node):
                return Unread(f"line {node.lineno} divides {left!r} by the number of ranks", left)
            return _open(node)
        try:
            if isinstance(kind, (ast.In, ast.NotIn)):
                return (left in right) is isinstance(kind, ast.In)
            if isinstance(kind, _COMPUTED):
                numbers = type(left) in (int, float) and type(right) in (int, float)
                texts = type(left) is type(right) is str and isinstance(kind, ast.Add)
                if not (numbers or texts) or (texts and len(left) + len(right) > _LONGEST):
                    return _open(node)
                value = _OPERATORS[type(kind)](left, right)
                return value if texts or abs(value) < _LARGEST else _open(node)
            return _OPERATORS[type(kind)](left, right) if type(kind) in _OPERATORS else _open(node)
        except (TypeError, ValueError, ArithmeticError):
            return _open(node)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        name = self.script.dotted(node.func)
        last = name.rpartition(".")[2]
        if name.endswith(_ON_GPUS):
            self.assumed.setdefault(ast.unparse(node), f"line {node.lineno}")
            return True
        if name == "dict":
            return {each.arg or "": self.of(each.value, scope) for each in node.keywords}
        if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_TEXT:
            text = self.of(node.func.value, scope)
            arguments = [self.of(each, scope) for each in node.args]
            if type(text) is str and all(type(each) is str for each in arguments) and len(arguments) < 2:
                return getattr(text, node.func.attr)(*arguments)
        if name in _CASTS and len(node.args) == 1:
            value = self.of(node.args[0], scope)
            if isinstance(value, Unread):
                return value
            try:
                return _CASTS[name](value) if type(value) in (int, float, str, bool) else _open(node)
            except (ValueError, OverflowError):
                return _open(node)
        if last in ("field", "Field") and node.keywords:
            default = next((each.value for each in node.keywords if each.arg == "default"), None)
            return self.of(default, scope) if default is not None else _open(node)
        return _open(node)

    def _collection(self, node: ast.List | ast.Tuple | ast.Dict, scope: Scope) -> Any:
        if isinstance(node, ast.Dict):
            keys = [self.of(key, scope) if key is not None else None for key in node.keys]
            pairs = zip(keys, node.values, strict=True)
            return {key: self.of(value, scope) for key, value in pairs if isinstance(key, (str, int))}
        values = [self.of(each, scope) for each in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)

    def _item(self, node: ast.Subscript, scope: Scope) -> Any:
        of, key = self.of(node.value, scope), self.of(node.slice, scope)
        if isinstance(of, (dict, list, tuple)) and isinstance(key, (str, int)):
            try:
                return of[key]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                return Unread(f"line {node.lineno}: {ast.unparse(node)[:80]} is not in the text")
        return _open(node)


def _open(node: ast.expr) -> Unread:
    text = " ".join(ast.unparse(node).split())
    return Unread(f"line {node.lineno}: {text if len(text) <= 80 else text[:77] + '...'}")


def _loop(binding: Binding) -> Unread:
    return Unread(f"line {binding.line} gives it values while the script runs")


def _changes(target: str, value: ast.expr | None) -> bool:
    """Whether an assigned value is worked out from what it is assigned to."""
    return value is not None and any(
        isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == target for node in ast.walk(value)
    )


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _is_shared(value: ast.expr | None) -> bool:
    """Whether the value is divided by a number of ranks."""
    return value is not None and any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, (ast.FloorDiv, ast.Div))
        and any(part in ast.unparse(node.right).lower() for part in _SHARED)
        for node in ast.walk(value)
    )
