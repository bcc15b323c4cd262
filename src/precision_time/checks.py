"""Checks of single values: each returns the converted value, or raises an error that names value and fix.

Checks of job fields take the name of the field and its value and raise `JobError`. Text that holds a number ("8") is
taken as one, so that command-line flags and job files share them. Checks of entries of data files (hardware, prices,
storage, calibrations) take the value and where it is, and raise `CatalogError`. Quantities have a largest value, above
which the unit is probably wrong.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from precision_time.errors import CatalogError, JobError, nearest

Check = Callable[[str, Any], Any]
Entry = Mapping[str, Any]

LARGEST_COUNT = 10**12
_SUFFIXED = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgb])\s*", re.IGNORECASE)
_SUFFIX_VALUE = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


def option(default: Any, check: Check, help_text: str, choices: Iterable[str] = ()) -> Any:
    """A dataclass field that carries its check, its one-line description and its usual values."""
    return dataclasses.field(default=default, metadata={"check": check, "help": help_text, "choices": tuple(choices)})


def apply_checks(instance: Any) -> None:
    """Replace every field of a frozen dataclass built with `option` by its checked value."""
    for name, check in _checks(instance.__class__):
        value = getattr(instance, name)
        checked = check(name, value)
        if checked is not value:
            object.__setattr__(instance, name, checked)


def present_fields(instance: Any) -> dict[str, Any]:
    """The fields of a section of a job that are not None."""
    values = {name: getattr(instance, name) for name, _ in _checks(instance.__class__)}
    return {name: value for name, value in values.items() if value is not None}


@cache
def _checks(of: type) -> tuple[tuple[str, Check], ...]:
    return tuple((item.name, item.metadata["check"]) for item in dataclasses.fields(of) if "check" in item.metadata)


def show(value: object, longest: int = 60) -> str:
    """The given value as it is quoted in an error: one line of at most `longest` characters.

    The work is bounded too: of a value that is large, nested or holds itself, only the part that is shown is visited.
    """
    text = ""
    try:
        for part in _parts_of(value, longest):
            text += part
            if len(text) > longest:
                break
    except Exception:  # a container of the caller's own class
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _parts_of(value: Any, longest: int) -> Iterator[str]:
    """The text of `repr`, piece by piece; a piece has about `longest` characters at most."""
    kind = type(value)
    if kind in _BRACKETS:
        yield from _items_of(value, *_BRACKETS[kind], longest)
    elif isinstance(value, Mapping):
        yield from _items_of(value.items(), "{", "}", longest, pairs=True)
    elif isinstance(value, str):
        yield str.__repr__(value[: longest + 1])
    elif kind in (bytes, bytearray):
        yield repr(value[: longest + 1])
    elif kind is int and value.bit_length() > 3000:  # Python writes no more than 4,300 digits
        yield f"a whole number of {round(value.bit_length() * math.log10(2)):,} digits"
    elif isinstance(value, Iterable) or dataclasses.is_dataclass(value):  # its repr may be of any length
        yield f"<{kind.__name__}>"
    else:
        yield repr(value)


_BRACKETS: dict[type, tuple[str, str]] = {list: ("[", "]"), tuple: ("(", ")"), set: ("{", "}"), frozenset: ("{", "}")}


def _items_of(items: Iterable[Any], begin: str, end: str, longest: int, pairs: bool = False) -> Iterator[str]:
    yield begin
    count = 0
    for count, item in enumerate(items, 1):
        if count > 1:
            yield ", "
        if pairs:
            yield from _parts_of(item[0], longest)
            yield ": "
        yield from _parts_of(item[1] if pairs else item, longest)
    if begin == "(" and count == 1:
        yield ","
    yield end


def optional(check: Check) -> Check:
    """None passes; anything else goes through `check`."""

    def checked(field: str, value: Any) -> Any:
        return None if value is None else check(field, value)

    return checked


def count(field: str, value: Any) -> int:
    """A whole number from 1 to 10^12."""
    number = value
    if isinstance(value, str):
        if match := _SUFFIXED.fullmatch(value):
            whole = math.floor(float(match[1]) * _SUFFIX_VALUE[match[2].lower()])
            raise JobError(f"{field} {show(value)} has a suffix; write the number out, for example {whole}")
        number = int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,30}\s*", value) else None
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= LARGEST_COUNT:
        raise JobError(f"{field} must be a whole number of at least 1, not {show(value)}; for example {field}: 8")
    return number


def count_or_zero(field: str, value: Any) -> int:
    """A whole number from 0 to 10^12."""
    if not isinstance(value, bool) and value in (0, "0"):
        return 0
    try:
        return count(field, value)
    except JobError as error:
        raise JobError(str(error).replace("at least 1", "at least 0")) from None


def _real(value: Any) -> float | None:
    """A finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def positive(field: str, value: Any) -> float:
    """A finite number above 0."""
    number = _real(value)
    if number is None or number <= 0:
        raise JobError(f"{field} must be a number above 0, not {show(value)}; for example {field}: 1.5")
    return number


def positive_or_zero(field: str, value: Any) -> float:
    """A finite number of at least 0."""
    number = _real(value)
    if number is None or number < 0:
        raise JobError(f"{field} must be a number of at least 0, not {show(value)}; for example {field}: 1.5")
    return number


def switch(field: str, value: Any) -> bool:
    """true or false."""
    spellings = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in spellings:
        return spellings[value.strip().lower()]
    if not isinstance(value, bool):
        raise JobError(f"{field} must be true or false, not {show(value)}; for example {field}: true")
    return value


def on_off(field: str, value: Any) -> bool:
    """true or false, also as 1 and 0, which measurement tables write."""
    stripped = value.strip() if isinstance(value, str) else value
    if not isinstance(stripped, bool) and stripped in (0, 1, "0", "1"):
        return bool(int(stripped))
    return switch(field, stripped)


def text(field: str, value: Any) -> str:
    """A word or a path: not empty, one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise JobError(f"{field} must be a non-empty line of text, not {show(value)}; give a name or a path")
    return value.strip()


def word(choices: Iterable[str], aliases: Mapping[str, str] | None = None, later: Iterable[str] = ()) -> Check:
    """One of `choices` (or an alias), in any case; words of `later` exist but are not supported yet."""
    known, other, coming = tuple(choices), dict(aliases or {}), tuple(later)
    exact = frozenset(known) - other.keys()

    def checked(field: str, value: Any) -> str:
        if isinstance(value, str) and value in exact:
            return value
        spelled = value.strip().lower() if isinstance(value, str) else ""
        found = next((c for c in (spelled, spelled.replace("-", "_")) if c in known or c in other), None)
        if found is not None:
            return other.get(found, found)
        if spelled in coming:
            raise JobError(f"{field} {show(value)} is not supported yet; use {' or '.join(known)} for this prediction")
        raise JobError(
            f"{field} {show(value)} is unknown; nearest: {nearest(spelled, known)}; "
            f"set {field} to one of {', '.join(known)}"
        )

    return checked


def known_fields(given: Mapping[str, Any], known: Iterable[str], where: str) -> dict[str, Any]:
    """The fields with hyphens turned into underscores and null ones left out; an unknown one is an error."""
    names = tuple(known)
    clean: dict[str, Any] = {}
    for key, value in given.items():
        name = key.strip().replace("-", "_") if isinstance(key, str) else ""
        if name not in names:
            raise JobError(
                f"unknown field {show(key)} in {where}; nearest: {nearest(name, names)}; correct or remove it"
            )
        if name in clean:
            raise JobError(f"field {name} is given twice in {where}; keep one of them")
        if value is not None:
            clean[name] = value
    return clean


def mapping(value: object, where: str) -> Entry:
    """A mapping of keys to values."""
    if not isinstance(value, Mapping):
        raise CatalogError(f"{where} is {show(value)}; write `key: value` lines below it.")
    return value


def known_keys(entry: Entry, known: set[str], where: str) -> None:
    """An entry without keys other than the known ones."""
    for key in entry:
        if key not in known:
            raise CatalogError(
                f"{where}: unknown key {show(key)}; nearest: {nearest(key, known)}; correct or remove it."
            )


def required(entry: Entry, needed: Mapping[str, str], where: str) -> None:
    """An entry that has every needed field; `needed` maps a field to its name in the error."""
    for field, key in needed.items():
        if entry.get(field) is None:
            raise CatalogError(f"{where}: {key} is missing; it has no default, so add it.")


def quantity(value: object, where: str, largest: float, unit: str) -> float:
    """A number from 0 to `largest` in `unit`."""
    number = _real(value)
    if number is None:
        raise CatalogError(f"{where} is {show(value)}; give a number ({unit}).")
    if not 0 <= number <= largest:
        hint = "it cannot be negative" if number < 0 else f"above {largest:g} the unit is probably wrong"
        raise CatalogError(f"{where} is {show(value)}; {hint}: give {unit}.")
    return number


def positive_quantity(value: object, where: str, largest: float, unit: str) -> float:
    """A number above 0, at most `largest`, in `unit`."""
    number = quantity(value, where, largest, unit)
    if number == 0:
        raise CatalogError(f"{where} is 0; it must be above 0 ({unit}).")
    return number


def whole(value: float, where: str) -> int:
    """A whole number."""
    if value != int(value):
        raise CatalogError(f"{where} is {value:g}; give a whole number.")
    return int(value)


def names(entry: Entry, key: str, where: str) -> tuple[str, ...]:
    """The list of names under `key`; empty where there is none."""
    value = entry.get(key) or []
    if not isinstance(value, list):
        raise CatalogError(f"{where}: {key} is {show(value)}; give a list of names.")
    return tuple(str(name) for name in value)
