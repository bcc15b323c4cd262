"""Settings that a script takes from its user, with their defaults: of argparse, click, dataclasses, classes."""

from __future__ import annotations

import ast

from precision_time.job.scripts.script import Binding, Call, Script

_ACTIONS = {"store_true": False, "store_false": True}


def settings_pool(script: Script) -> dict[str, list[Binding]]:
    """Name of a setting -> its defaults."""
    pool: dict[str, list[Binding]] = {}
    for call in script.calls:
        if call.last in ("add_argument", "option", "add_parser_argument"):
            name, default = _argument(call)
            if name:
                pool.setdefault(name, []).append(Binding(default, call.line, call.guards, call.scope))
    for node in script.classes.values():
        for line in node.body:
            target: ast.expr | None = line.target if isinstance(line, ast.AnnAssign) else None
            if isinstance(line, ast.Assign) and len(line.targets) == 1:
                target = line.targets[0]
            if isinstance(target, ast.Name) and isinstance(line, (ast.Assign, ast.AnnAssign)) and line.value:
                pool.setdefault(target.id, []).append(Binding(line.value, line.lineno, (), script.scope))
    return pool


def _argument(call: Call) -> tuple[str, ast.expr | None]:
    """Name and default of `add_argument("-b", "--batch-size", type=int, default=32)`."""
    flags = [each.value for each in call.node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    if not flags:
        return "", None
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    dest = call.argument("dest")
    name = str(dest.value) if isinstance(dest, ast.Constant) else long.lstrip("-").replace("-", "_")
    action, default, kind = call.argument("action"), call.argument("default"), call.argument("type")
    required = call.argument("required")
    if default is None:
        value = _ACTIONS.get(str(action.value)) if isinstance(action, ast.Constant) else None
        wanted = not long.startswith("-") or (isinstance(required, ast.Constant) and required.value is True)
        return name, None if wanted else ast.copy_location(ast.Constant(value), call.node)
    text = default.value if isinstance(default, ast.Constant) else None
    if isinstance(kind, ast.Name) and kind.id in ("int", "float") and isinstance(text, str):
        default = ast.copy_location(ast.Call(ast.Name(kind.id, ast.Load()), [default], []), default)
    return name, default
