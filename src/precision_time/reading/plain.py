"""Values that Python callers give, as the values that files have: None, bool, int, float, str, list, tuple and dict."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from precision_time.checks import mapping, show
from precision_time.errors import CatalogError, JobError
from precision_time.reading.values import DEEPEST, LONGEST_KEY, MOST_DIGITS, MOST_VALUES, TOO_DEEP, too_many

_PLAIN = frozenset((type(None), bool, float, str))
_LARGEST_WHOLE = 10**MOST_DIGITS


def plain_values(field: str, value: Any) -> Any:
    """The value with scalars of numpy, subclasses and mappings as plain types. Dataclasses of a job stay as they are.

    Raises `JobError` for other types, whole numbers of more than 30 digits, and what is too deep, too large or holds
    itself.
    """
    kind = type(value)
    if kind in _PLAIN or (kind is int and -_LARGEST_WHOLE < value < _LARGEST_WHOLE):
        return value
    try:
        return _Converter().convert(value, 0)
    except _FaultError as fault:
        raise JobError(f"{fault.place(field)} {fault}") from None
    except Exception as error:  # a container of the caller's own class
        reason = type(error).__name__
        raise JobError(f"{field} is {show(value)}, which cannot be read ({reason}); use a dict") from error


def plain_mapping(field: str, value: Any) -> dict[str, Any]:
    """The same of a mapping; raises `JobError` for anything else."""
    if not isinstance(value, Mapping):
        raise JobError(f"{field} is {show(value)}; give a mapping")
    result: dict[str, Any] = plain_values(field, value)
    return result


def plain_entry(where: str, value: Any) -> dict[str, Any]:
    """A mapping of a data file that a Python caller gives, made plain; raises `CatalogError`."""
    try:
        entry: dict[str, Any] = plain_values(where, mapping(value, where))
    except JobError as error:
        raise CatalogError(f"{error}.") from None
    return entry


class _FaultError(Exception):
    """What is wrong with a value; `path` leads to it, from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str | int] = []

    def place(self, field: str) -> str:
        inner = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in reversed(self.path[-8:]))
        return field + (inner if inner.isprintable() and len(inner) <= 100 else f" at {show(inner)}")


class _Converter:
    def __init__(self) -> None:
        self._values = 0

    def convert(self, value: Any, depth: int) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _FaultError(f"has {too_many()}")
        if depth > DEEPEST:
            raise _FaultError(f"has {TOO_DEEP}")
        if type(value) in _PLAIN:
            return value
        if isinstance(value, (list, tuple)):
            items = [self._inner(index, item, depth) for index, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, Mapping):
            names = ((self._key(key), item) for key, item in value.items())
            return {name: self._inner(name, item, depth) for name, item in names}
        if type(value).__module__.startswith("precision_time.") and dataclasses.is_dataclass(value):
            return value
        return self._scalar(value)

    def _inner(self, key: str | int, value: Any, depth: int) -> Any:
        try:
            return self.convert(value, depth + 1)
        except _FaultError as fault:
            fault.path.append(key)
            raise

    def _key(self, key: Any) -> str:
        if isinstance(key, str) and len(key) <= LONGEST_KEY:
            return str.__str__(key)
        if type(key) is int and abs(key) < _LARGEST_WHOLE:
            return str(key)
        raise _FaultError(f"has the key {show(key)}; write a name of at most {LONGEST_KEY} characters")

    def _scalar(self, value: Any) -> Any:
        if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
            value = value.item()
        try:
            if value is None or isinstance(value, bool):
                return value
            if isinstance(value, str):
                return str.__str__(value)
            if isinstance(value, numbers.Integral):
                whole = int.__int__(value) if isinstance(value, int) else int(value)
                if abs(whole) < _LARGEST_WHOLE:
                    return whole
            elif isinstance(value, float):
                return float.__float__(value)
            elif isinstance(value, numbers.Real):
                return float(value)
        except (ArithmeticError, ValueError):
            pass
        raise _FaultError(
            f"is {show(value)} ({type(value).__name__}); give text, a number of at most {MOST_DIGITS} "
            "digits, true, false, a list or a mapping"
        )
