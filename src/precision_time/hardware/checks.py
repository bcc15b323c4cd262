"""Checks of single values of an entry: each returns the converted value or raises `CatalogError` with the fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precision_time.errors import CatalogError, nearest

Entry = Mapping[str, Any]


def mapping(value: object, where: str) -> Entry:
    if not isinstance(value, Mapping):
        raise CatalogError(f"{where} is {value!r}; write `key: value` lines below it.")
    return value


def known_keys(entry: Entry, known: set[str], where: str) -> None:
    for key in entry:
        if key not in known:
            raise CatalogError(f"{where}: unknown key {key!r}; nearest: {nearest(key, known)}; correct or remove it.")


def required(entry: Entry, needed: Mapping[str, str], where: str) -> None:
    for field, key in needed.items():
        if entry.get(field) is None:
            raise CatalogError(f"{where}: {key} is missing; it has no default, so add it.")


def number(value: object, where: str, largest: float, unit: str) -> float:
    convert: Callable[[Any], float] = float
    try:
        if isinstance(value, bool):
            raise ValueError
        result = convert(value)
    except (TypeError, ValueError):
        raise CatalogError(f"{where} is {value!r}; give a number ({unit}).") from None
    if not 0 <= result <= largest:  # also catches nan
        hint = "it cannot be negative" if result < 0 else f"above {largest:g} the unit is probably wrong"
        raise CatalogError(f"{where} is {value!r}; {hint}: give {unit}.")
    return result


def positive(value: object, where: str, largest: float, unit: str) -> float:
    result = number(value, where, largest, unit)
    if result == 0:
        raise CatalogError(f"{where} is 0; it must be above 0 ({unit}).")
    return result


def whole(value: float, where: str) -> int:
    if value != int(value):
        raise CatalogError(f"{where} is {value:g}; give a whole number.")
    return int(value)


def names(entry: Entry, key: str, where: str) -> tuple[str, ...]:
    value = entry.get(key) or []
    if not isinstance(value, list):
        raise CatalogError(f"{where}: {key} is {value!r}; give a list of names.")
    return tuple(str(name) for name in value)
