"""Parts of shell text that are not the arguments of a program: files written in place, commands whose output is used,
and arithmetic."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping

_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")
_WRITES = re.compile(r"^\s*(?:cat|tee)\b|>")
OUTPUT = "$OUTPUT_OF_A_COMMAND"
"""What stands for the output of a command, as a variable that no text sets."""
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip
_LONGEST, _LARGEST = 100, 10**12


def without_documents(text: str) -> str:
    """The text without documents (`cat > FILE <<EOF`) that are written to a file. One that a shell reads stays."""
    return "\n".join(_lines(text))


def _lines(text: str) -> Iterator[str]:
    end, written = "", False
    for line in text.split("\n"):
        if end:
            over = line.strip() == end
            end = "" if over else end
            if not written:
                yield ";" if over else line
            continue
        found = None if "<<<" in line else _DOCUMENT.search(line)
        if found:
            end, written = found[2], _WRITES.search(line) is not None
            line = f"{line[: found.start()]};{line[found.end() :]}" if not written else line[: found.start()]
        yield line


def without_outputs(text: str) -> str:
    """The text with `OUTPUT` in place of `$(...)`, and arithmetic, `$((...))`, without spaces."""
    result: list[str] = []
    at = 0
    while (start := text.find("$(", at)) >= 0:
        result.append(text[at:start])
        at = _closed(text, start + 1)
        inner = text[start:at]
        arithmetic = inner.startswith("$((") and inner.endswith("))")
        result.append("".join(inner.split()) if arithmetic else OUTPUT)
    return "".join([*result, text[at:]])


def _closed(text: str, start: int) -> int:
    """The place after the parenthesis that closes the one at `start`; the end of the text where none does."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if not depth:
            return i + 1
    return len(text)


def computed(text: str, variables: Mapping[str, str]) -> str:
    """A value in which `$((NODES*8))` is worked out, where all its variables are whole numbers."""
    return re.sub(r"\$\(\(([^()$]{1,100})\)\)", lambda found: _number(found[1], variables) or found[0], text)


def _number(text: str, variables: Mapping[str, str]) -> str:
    filled = re.sub(r"[A-Za-z_]\w*", lambda name: variables.get(name[0], name[0]), text)
    if len(filled) > _LONGEST or not re.fullmatch(r"[\d+\-*/%]+", filled):
        return ""
    try:
        return str(_value(ast.parse(filled.replace("/", "//"), mode="eval").body))
    except (SyntaxError, ValueError, ArithmeticError):
        return ""


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        result = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        if abs(result) <= _LARGEST:
            return result
    raise ValueError("no arithmetic")
