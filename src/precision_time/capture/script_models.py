"""Models that a training script takes from a library, as its text names them: torchvision, timm, Hugging Face."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_NOT_MODELS = frozenset(
    "get_model get_model_weights get_weight list_models segmentation detection video quantization optical_flow".split()
)


def library_models(tree: ast.Module) -> list[str]:
    """The models as `precision-time predict` takes them, in the order of the text, each once."""
    names = _imported(tree)
    calls = sorted((node for node in ast.walk(tree) if isinstance(node, ast.Call)), key=lambda node: node.lineno)
    return list(dict.fromkeys(name for node in calls for name in _of_call(node, names)))


def _imported(tree: ast.Module) -> dict[str, str]:
    """Name in the script -> the dotted name that it was imported as."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                name = each.asname or each.name.partition(".")[0]
                found[name] = each.name if each.asname else name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                found[each.asname or each.name] = f"{node.module}.{each.name}"
    return found


def _of_call(node: ast.Call, imported: dict[str, str]) -> Iterator[str]:
    *before, last = _dotted(node.func, imported).split(".")
    first, helper = _text(node), last in _NOT_MODELS or last.endswith("_weights")
    if before[:2] == ["torchvision", "models"] or before[:1] == ["timm"]:
        if last in ("get_model", "create_model"):
            if first:
                yield f"{before[0]}:{first}"
        elif before[0] == "torchvision" and last.islower() and not helper:
            yield f"torchvision:{last}"
    elif last == "from_pretrained" and before and re.search("Model|LM|For[A-Z]", before[-1]) and first:
        yield first


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    """The dotted name of a function, its first part as it was imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(imported.get(node.id, node.id))
    return ".".join(reversed(parts))


def _text(node: ast.Call) -> str:
    """The first argument, or that named model_name, name or pretrained_model_name_or_path, where it is text."""
    given = list(node.args[:1])
    given += [
        word.value for word in node.keywords if word.arg in ("model_name", "name", "pretrained_model_name_or_path")
    ]
    for each in given:
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            return each.value
    return ""
