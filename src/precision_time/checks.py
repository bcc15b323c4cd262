"""Checks of single values that are no numbers, and of keys: each returns the value, or raises an error with the fix.

Checks of job fields take the name of the field and its value and raise `JobError`; those of entries of data files
raise `CatalogError`. Types of fields, also numbers, are in `field_types`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from precision_time.errors import CatalogError, JobError, nearest

Check = Callable[[str, Any], Any]
Entry = Mapping[str, Any]
LONGEST_TEXT = 4096


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


def last_name(field: str) -> str:
    """The key of a field that is named with its file and entry."""
    return re.split(r": |\.", field)[-1]


def switch(field: str, value: Any) -> bool:
    """true or false."""
    spellings = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in spellings:
        return spellings[value.strip().lower()]
    if not isinstance(value, bool):
        raise JobError(f"{field} must be true or false, not {show(value)}; for example {last_name(field)}: true")
    return value


def on_off(field: str, value: Any) -> bool:
    """true or false, also as 1 and 0, which measurement tables write."""
    stripped = value.strip() if isinstance(value, str) else value
    if not isinstance(stripped, bool) and stripped in (0, 1, "0", "1"):
        return bool(int(stripped))
    return switch(field, stripped)


def small_number(text: str) -> int | None:
    """The whole number of at most nine digits that a text is; None where it is none."""
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def text(field: str, value: Any) -> str:
    """A word or a path: not empty, one line."""
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_TEXT or not value.isprintable():
        raise JobError(
            f"{field} must be a non-empty line of text of at most {LONGEST_TEXT:,} characters, not {show(value)}; "
            "give a name or a path"
        )
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
            f"set {last_name(field)} to one of {', '.join(known)}"
        )

    return checked


def known_fields(
    given: Mapping[str, Any],
    known: Iterable[str],
    where: str,
    elsewhere: Callable[[str, object], str] = lambda name, value: "",
) -> dict[str, Any]:
    """The fields with hyphens turned into underscores and null ones left out; an unknown one is an error.

    `elsewhere`: what to write for a name (and its value) that belongs in another place, or "".
    """
    if not isinstance(given, Mapping):
        raise JobError(f"{where} is {show(given)}; give a mapping of fields")
    names = tuple(known)
    clean: dict[str, Any] = {}
    for key, value in given.items():
        name = key.strip().replace("-", "_") if isinstance(key, str) else ""
        if name not in names:
            fix = elsewhere(name, value) or f"nearest: {nearest(name, names)}; correct or remove it"
            raise JobError(f"unknown field {show(key)} in {where}; {fix}")
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
