"""`key=value;key=value` text, as in measurement tables and `--model-config`, and the same as a mapping.

"image_size=192x160;channels=4"      -> {"image_size": (192, 160), "channels": 4}
"cutoffs=19997,39997;dropout=0.1"    -> {"cutoffs": (19997, 39997), "dropout": 0.1}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from precision_time.checks import show
from precision_time.errors import JobError

Scalar = int | float | bool | str
Value = int | float | bool | str | tuple[Scalar, ...]

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_INT = re.compile(r"[+-]?[0-9]{1,30}")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_SIZES = re.compile(r"[0-9]{1,18}(?:x[0-9]{1,18})+")


def is_shape(text: str) -> bool:
    """Whether text is sizes alone, as in "3x224x224" or "784"."""
    return _SIZES.fullmatch(text.strip()) is not None or text.strip().isdecimal()


def _parse_scalar(text: str) -> Scalar:
    text = text.strip()
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return text


def parse_value(text: str) -> Value:
    """An int, float, true/false, a tuple ("128x128x64" or "1,2,3"), or the text itself."""
    text = text.strip()
    if _SIZES.fullmatch(text):
        return tuple(int(part) for part in text.split("x"))
    if "," in text:
        parts = text.split(",")
        return tuple(_parse_scalar(part) for part in (parts if parts[-1].strip() else parts[:-1]))
    return _parse_scalar(text)


def parse_fields(text: str, field: str) -> dict[str, Value]:
    """The mapping written as `key=value;...`; empty text is an empty mapping. `field` names it in errors."""
    values: dict[str, Any] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise JobError(
                f"{field} {show(text)} has no key=value in {show(part.strip())}; "
                f"write key=value;key=value, for example image_size=224;channels=3"
            )
        if key.strip() in values:
            raise JobError(f"{field} gives {key.strip()!r} twice; keep one of them")
        values[key.strip()] = value
    return clean_fields(values, field)


def clean_fields(values: Mapping[Any, Any], field: str) -> dict[str, Value]:
    """The same mapping with checked keys, parsed text, lists as tuples and null values left out."""
    clean: dict[str, Value] = {}
    for key, value in values.items():
        name = key.strip().replace("-", "_") if isinstance(key, str) else ""
        if not _KEY.fullmatch(name):
            raise JobError(f"{field} has the key {show(key)}; use letters, digits and underscores")
        if name in clean:
            raise JobError(f"{field} gives {name!r} twice; keep one of them")
        if value is not None:
            clean[name] = _clean_value(value, f"{field}.{name}")
    return clean


def _clean_value(value: Any, field: str) -> Value:
    if isinstance(value, str):
        if ";" in value or not value.isprintable():
            raise JobError(f"{field} holds {show(value)}; text must be one line without semicolons")
        return parse_value(value)
    if isinstance(value, (list, tuple)):
        items = tuple(_clean_value(item, field) for item in value)
        if any(isinstance(item, tuple) for item in items):
            raise JobError(f"{field} holds a list inside a list: {show(value)}; give a flat list of numbers")
        return items  # type: ignore[return-value]
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise JobError(f"{field} holds {show(value)}; give a finite number, true, false, text or a flat list")


def format_fields(values: Mapping[str, Value]) -> str:
    """The text that `parse_fields` reads back to the same mapping."""
    return ";".join(f"{key}={_format_value(value)}" for key, value in values.items())


def _format_value(value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(_format_value(item) for item in value) + ("," if len(value) == 1 else "")
    return str(value).lower() if isinstance(value, bool) else str(value)
