"""A config registry of torchtitan (Python since 2026) as the mapping that its TOML files had.

The text is parsed and not run: literals and nested calls with keywords are read, and what is worked out is no value. A
registry has a function for each config, which returns `Trainer.Config(...)`, or changes what another one returns.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError, nearest

SECTIONS = ("training", "parallelism", "model_spec", "activation_checkpoint")
_FILE = re.compile(r"(.+\.py):(\w+)")
_RENAMED = {"model_converters": "model", "validator": "validation", "debug": "debug"}
_UNREAD = "a value that is worked out when the file runs"


def split_path(path: str) -> tuple[str, str]:
    """The file and the function of "FILE.py:FUNCTION"; "" where none is named."""
    found = _FILE.fullmatch(path)
    return (found[1], found[2]) if found else (path, "")


def is_registry(text: str) -> bool:
    return "torchtitan" in text and ".Config(" in text and re.search(r"^def \w+\(", text, re.MULTILINE) is not None


def settings_of(text: str, path: str, function: str) -> dict[str, Any]:
    """The settings that one function of a registry returns. Raises DataError."""
    try:
        functions = {f.name: f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)}
        configs = {name: found for name, f in functions.items() if (found := _returned(f, functions, 8)) is not None}
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        raise DataError(f"file {show(path)} is no Python text") from None
    if not function and len(configs) == 1:
        function = next(iter(configs))
    if function not in configs:
        which = f"{show(function)} is none of them; nearest: {nearest(function, list(configs))}; " if function else ""
        raise DataError(
            f"file {show(path)} has {len(configs)} configs: {which}name one as {path}:FUNCTION, for example "
            f"{next(iter(configs), 'llama3_8b')}"
        )
    return _as_toml(configs[function], function)


def _returned(function: ast.FunctionDef, functions: dict[str, ast.FunctionDef], depth: int) -> dict[str, Any] | None:
    """What a function returns, of a config. Of the functions that it calls the first is followed."""
    known: dict[str, Any] = {}
    based = False
    for line in function.body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1:
            target, value = line.targets[0], line.value
            if isinstance(target, ast.Name):
                called = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
                if called in functions and depth and not based:
                    based = True
                    known[target.id] = _returned(functions[called], functions, depth - 1)
                else:
                    known[target.id] = _value(value, known)
            elif isinstance(target, ast.Attribute):
                _assign(target, _value(value, known), known)
        elif isinstance(line, ast.Return) and line.value is not None:
            found = _value(line.value, known)
            return found if isinstance(found, dict) and set(SECTIONS) & set(found) else None
    return None


def _assign(target: ast.Attribute, value: Any, known: dict[str, Any]) -> None:
    names = [target.attr]
    of = target.value
    while isinstance(of, ast.Attribute):
        names.insert(0, of.attr)
        of = of.value
    place: Any = known.get(of.id) if isinstance(of, ast.Name) else None
    for name in names[:-1]:
        place = place.setdefault(name, {}) if isinstance(place, dict) else None
    if isinstance(place, dict):
        place[names[-1]] = value


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """Of a literal, a list, a name that is known, or a call: its keywords, its class, and arguments without one."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, (int, float)) else _UNREAD
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(each, known) for each in node.elts]
    if isinstance(node, ast.Name):
        return known.get(node.id, _UNREAD)
    if isinstance(node, ast.Call):
        words = {word.arg: _value(word.value, known) for word in node.keywords if word.arg}
        positional = [_value(each, known) for each in node.args]
        return {**words, "class": ast.unparse(node.func), **({"arguments": positional} if positional else {})}
    return _UNREAD


def _as_toml(config: dict[str, Any], function: str) -> dict[str, Any]:
    """The tables of the TOML form."""
    tables: dict[str, Any] = {}
    for name, value in config.items():
        if name in ("class", "hf_assets_path", "model_spec"):
            continue
        inner = {key: each for key, each in value.items() if key != "class"} if isinstance(value, dict) else value
        tables[_RENAMED.get(name, name)] = inner
    flavour = next(iter(config.get("model_spec", {}).get("arguments", ())), "")
    end = f"_{flavour}".lower()
    model = function[: -len(end)] if function.lower().endswith(end) else re.split(r"_\d", function)[0]
    converters = tables.pop("model", {}).get("converters", [])
    tables["model"] = {"name": model, "flavor": str(flavour)} if flavour else {}
    names = [str(each.get("class", "")) for each in converters if isinstance(each, dict)]
    tables["model"]["converters"] = ["quantize.linear.float8" if "Float8Linear" in name else name for name in names]
    for each in converters:
        if isinstance(each, dict) and "Float8Linear" in str(each.get("class")):
            tables["float8"] = {key: value for key, value in each.items() if key != "class"}
    if isinstance(data := tables.pop("dataloader", None), dict) and "dataset" in data:
        tables.setdefault("training", {})["dataset"] = data["dataset"]
    tables.setdefault("activation_checkpoint", {}).setdefault("selective_ac_option", "op")
    return tables
