"""Changes that turn a valid input into one that may be wrong: values, mappings, text."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

BAD_NUMBERS = (
    0, -1, -224, 0.5, 1.5, -0.0, 1e-320, 5e-324, 1e30, 1e308, 10**12, 10**18, 10**30, 10**400, 999_983, 2**31, 2**63,
    float("inf"), float("-inf"), float("nan"), 1_000_000_007,
)  # fmt: skip
BAD_TEXTS = (
    "", " ", "x", "-1", "0", "1e400", "nan", "inf", "9" * 5000, "1_000", "0x10", "١٢", "8.0", "8k", "1e3", "true",
    "null",
    "\x1b[31mred", "a\nb", "a\x00b", "$x^2$", "=1+1", "@SUM(A1)", "../../etc/passwd", "/dev/zero", "~", "${HOME}",
    "<script>alert(1)</script>", "|", "`", "a" * 100_000, "file.py:f", "hf:missing.json", "dp=2,dp=2", "tp=0", "pp=-1",
    "tp=1e9", "\ud800".encode("utf-8", "replace").decode(), "émoji 🚀", "8,16", "64x64", "1;2", "{", "[", "!!float ''",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [1], [[1]], [None], {"a": 1}, {"x": {"y": {"z": []}}}, [8, 16], ["a"], [{}], {1: 2},
    b"bytes", (1, 2), {"a", "b"},
)  # fmt: skip
PLAIN = tuple(value for value in OTHERS if not isinstance(value, (bytes, tuple, set)))
"""Values that a YAML or JSON file can hold."""

YAML_SCALARS = (
    "!!float ''", "!!int ''", "!!bool maybe", "!!timestamp x", "!!map [1]", "!!seq {a: 1}", "!!binary '@'", "!!set {a}",
    "!!python/object/apply:os.system ['true']", "!!null x", "2026-13-45", "2026-11-22", "12:30:45", "0o17", "1e400",
    ".inf", "-.inf", ".nan", "1e-320", "9" * 5000, "&a [*a]", "*missing", "!unknown x", "? [a, b]", "- - - -",
    "'unclosed",
    "\"unclosed", "{a: 1, a: 2}", "{[1]: 2}", "{null: 1}", "{1.5: 2}", "|\n  text", ">-\n  text", "%", "\t1", "<<: 1",
    "[" * 2000, "{a: " * 500, "=", "!!omap [a]", "!!pairs [a]", "~", "0b101", "1_0", "+1", "010", "yes", "on", "Off",
)  # fmt: skip


def bad_value(source: random.Random, plain: bool = False) -> Any:
    """A value that hardly any field takes. `plain`: only what a file can hold."""
    kind = source.random()
    if kind < 0.45:
        return source.choice(BAD_NUMBERS)
    if kind < 0.75:
        return source.choice(BAD_TEXTS)
    return copy.deepcopy(source.choice(PLAIN if plain else OTHERS))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in nested mappings and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with the value at `path` replaced."""
    result = copy.deepcopy(value)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return result


def mutated(source: random.Random, value: Any, plain: bool = False) -> Any:
    """A copy of nested mappings and lists with one to three changes."""
    result = copy.deepcopy(value)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        paths = list(places(result))
        if not paths:
            return bad_value(source, plain)
        path = source.choice(paths)
        kind = source.random()
        if kind < 0.7:
            result = replaced(result, path, bad_value(source, plain))
        elif kind < 0.8:
            result = _without(result, path)
        elif kind < 0.9:
            result = replaced(result, path, near_value(source, _at(result, path)))
        else:
            result = _with_key(source, result, path)
    return result


def mutated_text(source: random.Random, text: str) -> str:
    """Text with characters flipped, cut out, doubled or put in."""
    for _ in range(source.choice((1, 1, 2, 5, 20))):
        at, length = source.randrange(len(text) + 1), source.choice((1, 1, 2, 8, 40))
        kind = source.randrange(6)
        if kind == 0:
            text = text[:at] + text[at + length :]
        elif kind == 1:
            text = (
                text[:at] + source.choice("\x00\x1b\n\r\t:{}[]&*!|>'\"%@`,#?-0123456789eE.=;$\\ ü�\ufeff") + text[at:]
            )
        elif kind == 2:
            text = text[:at] + text[at : at + length] * source.choice((2, 3, 50)) + text[at:]
        elif kind == 3:
            text = text[:at]
        elif kind == 4:
            text = text[:at] + chr(source.randrange(1, 0x250)) + text[at + 1 :]
        else:
            text = text[:at] + source.choice(YAML_SCALARS) + text[at + length :]
        text = text or " "
    return text


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def near_value(source: random.Random, value: Any) -> Any:
    """A value a little different from a valid one."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        if abs(value) > 1e200:
            return -value
        return source.choice((-value, value * 10**6, value / 1000, str(value), [value], value + 1, value * 1e300))
    if isinstance(value, str):
        return mutated_text(source, value or "x")
    return [value]


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    result = copy.deepcopy(value)
    del _at(result, path[:-1])[path[-1]]
    return result


def _with_key(source: random.Random, value: Any, path: tuple[Any, ...]) -> Any:
    """A copy with a new key beside the value at `path`, or the value twice in its list."""
    result = copy.deepcopy(value)
    parent = _at(result, path[:-1])
    if isinstance(parent, dict):
        parent[source.choice(("unknown", "gpu_s", "", "-", "layers", "sources", "name", "based_on"))] = bad_value(
            source, True
        )
    else:
        parent.append(copy.deepcopy(parent[path[-1]]))
    return result
