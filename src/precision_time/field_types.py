"""`FieldType`: the values that one field may have, from which its check, its documentation and its tests are made.

Every field of a job, a device, a storage, a price, a calibration, a model's shape and an input size has one: its kind,
unit and range. Nothing past the check sees a value outside the range, so that the code behind it needs no guards.
`field_table.field_table` lists all of them.

A number may also be written as text ("8", "0.5"), so that command-line flags and files share one check.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache
from typing import Any

from precision_time.checks import last_name, on_off, show, switch, text, word
from precision_time.errors import CatalogError, JobError, PrecisionTimeError
from precision_time.reading import plain_values

Convert = Callable[[str, Any], Any]

_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
_SIZES = re.compile(r"[0-9]{1,18}(?:x[0-9]{1,18})+")
_SUFFIXED = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgb])\s*", re.IGNORECASE)
_SUFFIX_VALUE = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


_KINDS = {"switch": "true or false", "mapping": "a mapping", "list": "a list"}


@dataclasses.dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field. Called with the field's name and a value, it returns the checked value or raises `JobError`.

    kind      whole, number, switch, text, choice, mapping or list (of what `convert` reads)
    least, most, unit   the range of a whole or other number, and what is counted or measured
    zero      whether a number may also be 0, below `least`
    items     most entries of a list of such numbers; 0: one number only
    alone     whether one number may also stand without a list; else it becomes a list of one
    choices   the words of a choice, or usual values of a text
    optional  whether None, "not set", is allowed
    convert   the check of a kind that is not a number
    """

    kind: str
    least: float = 0
    most: float = 0
    unit: str = ""
    zero: bool = False
    items: int = 0
    alone: bool = True
    choices: tuple[str, ...] = ()
    optional: bool = False
    convert: Convert | None = None

    def __call__(self, field: str, value: Any) -> Any:
        if type(value) is int and self.kind == "whole" and self.alone and self.least <= value <= self.most:
            return value  # the usual case
        if value is None and self.optional:
            return None
        if self.convert is not None:
            return self.convert(field, value)
        if self.items and not isinstance(value, bool):
            parts = _parts(value)
            if parts is None and not self.alone:
                parts = (value,)
            if parts is not None:
                if not 1 <= len(parts) <= self.items:
                    raise JobError(f"{field} {show(value)} has {len(parts)} entries; give from 1 to {self.items}")
                one = dataclasses.replace(self, items=0, alone=True)
                return tuple(one(field, part) for part in parts)
        number = _whole(value) if self.kind == "whole" else _real(value)
        if number is None or not (self.least <= number <= self.most or (self.zero and number == 0)):
            raise JobError(self._refusal(field, value))
        return number

    def entry(self, value: Any, where: str) -> Any:
        """The checked value of an entry of a data file; raises `CatalogError`. `where` names file, entry and key."""
        try:
            return self(where, value)
        except JobError as error:
            raise CatalogError(f"{error}.") from None

    @property
    def range(self) -> str:
        """The allowed values in words: "a whole number of GPUs from 1 to 1,048,576"."""
        if self.kind not in ("whole", "number"):
            return f"one of {', '.join(self.choices)}" if self.kind == "choice" else _KINDS.get(self.kind, self.kind)
        noun = "a whole number" if self.kind == "whole" else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        zero = "0 or " if self.zero else ""
        several = f", or a list of up to {self.items} of them" if self.items and self.alone else ""
        if self.items and not self.alone:
            return f"a list of up to {self.items} numbers{unit} from {figure(self.least)} to {figure(self.most)}"
        return f"{zero}{noun}{unit} from {figure(self.least)} to {figure(self.most)}{several}"

    @property
    def example(self) -> Any:
        """A usual value of a number."""
        usual = (8, 2) if self.kind == "whole" else (1.5, 0.5)
        return next((each for each in usual if self.least <= each <= self.most), self.least)

    def _refusal(self, field: str, value: Any) -> str:
        if self.kind == "whole" and isinstance(value, str) and (match := _SUFFIXED.fullmatch(value)):
            whole_number = math.floor(float(match[1]) * _SUFFIX_VALUE[match[2].lower()])
            return f"{field} {show(value)} has a suffix; write the number out, for example {whole_number}"
        example = figure(self.example, grouped=False)
        return f"{field} must be {self.range}, not {show(value)}; for example {last_name(field)}: {example}"


def figure(value: float, grouped: bool = True) -> str:
    """A limit as text: 1,048,576 or 1e12."""
    if value == int(value) and abs(value) < 1e8:
        return f"{int(value):,}" if grouped else str(int(value))
    return f"{value:g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def whole(least: int, most: int, unit: str = "", *, items: int = 0, alone: bool = False) -> FieldType:
    """A whole number of `unit`, or a list of up to `items`; with `alone` either."""
    return FieldType("whole", least, most, unit, items=items, alone=alone or not items)


def number(least: float, most: float, unit: str = "", *, zero: bool = False, items: int = 0) -> FieldType:
    """A finite number of `unit`, or a list of up to `items`."""
    return FieldType("number", float(least), float(most), unit, zero=zero, items=items, alone=not items)


def choice(choices: Iterable[str], aliases: Mapping[str, str] | None = None) -> FieldType:
    """One of some words, or an alias of one, in any case."""
    known = tuple(choices)
    return FieldType("choice", choices=known, convert=word(known, aliases))


def structured(kind: str, convert: Convert, choices: Iterable[str] = ()) -> FieldType:
    """A value that `convert` reads: a mapping, a list, or text with a form of its own."""
    return FieldType(kind, choices=tuple(choices), convert=convert)


def optional(of: FieldType) -> FieldType:
    """The same, or None where the field is not set."""
    return dataclasses.replace(of, optional=True)


def option(default: Any, of: FieldType, meaning: str) -> Any:
    """A field of a dataclass with its type and its one-line meaning."""
    return dataclasses.field(default=default, metadata={"type": of, "meaning": meaning})


def type_of(item: dataclasses.Field[Any]) -> FieldType:
    """The type of a dataclass field that was made by `option`."""
    of: FieldType = item.metadata["type"]
    return of


def apply_checks(
    instance: Any, prefix: str = "", error: type[PrecisionTimeError] = JobError, names: Container[str] | None = None
) -> None:
    """Replace every field of a frozen dataclass built with `option` by its checked value.

    `prefix` stands before the fields' names in errors, which are of class `error`; `names`: the fields (None: all).
    """
    for name, of in _types(instance.__class__):
        if names is not None and name not in names:
            continue
        value = getattr(instance, name)
        if value is None and of.optional:
            continue  # most fields of most jobs
        field = prefix + name
        try:
            checked = of(field, plain_values(field, value))
        except JobError as refused:
            if error is JobError:
                raise
            raise error(f"{refused}.") from None
        if checked is not value:
            object.__setattr__(instance, name, checked)


def present_fields(instance: Any) -> dict[str, Any]:
    """The fields of a section of a job that are not None."""
    values = {name: getattr(instance, name) for name, _ in _types(instance.__class__)}
    return {name: value for name, value in values.items() if value is not None}


@cache
def _types(of: type) -> tuple[tuple[str, FieldType], ...]:
    return tuple((item.name, type_of(item)) for item in dataclasses.fields(of) if "type" in item.metadata)


def _whole(value: Any) -> int | None:
    """The whole number that a value is, also as text or as a float without a fraction."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return int(value) if _WHOLE.fullmatch(value) else None
    if isinstance(value, numbers.Integral):
        return int(value)
    real = _real(value)
    return int(real) if real is not None and real.is_integer() else None


def _real(value: Any) -> float | None:
    """The finite number that a value is, also as text."""
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
        return None
    if isinstance(value, str) and len(value) > 60:
        return None
    try:
        given = float(value)
    except (ValueError, OverflowError):
        return None
    return given if math.isfinite(given) else None


def _parts(value: Any) -> tuple[Any, ...] | None:
    """The entries of a list, of "192x160" or of "1,2,3"; None where the value is a single one."""
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(value, str) and _SIZES.fullmatch(value.strip()):
        return tuple(value.strip().split("x"))
    if isinstance(value, str) and "," in value:
        return tuple(part for part in value.split(",") if part.strip())
    return None


def _name(field: str, value: Any) -> str:
    return text(field, str(value) if type(value) in (int, float) else value)


TEXT = FieldType("text", 1, 4096, "characters", convert=text)
NAME = FieldType("text", 1, 4096, "characters", convert=_name)
"""Text that YAML may have read as a number."""
SWITCH = FieldType("switch", convert=switch)
ON_OFF = FieldType("switch", convert=on_off)
"""A switch that measurement tables write as 1 and 0."""

# Ranges that several fields share. The most of each is at least ten times what is known to have been run.
MOST_GPUS = 2**20
GPUS = whole(1, MOST_GPUS, "GPUs")
DEGREE = whole(1, MOST_GPUS, "ranks")
NODES = whole(1, MOST_GPUS, "nodes")
BATCH = whole(1, 2**24, "samples")
MICRO_STEPS = whole(1, 10**6, "micro-steps")
STEPS = whole(1, 10**12, "steps")
SAMPLES = whole(1, 10**15, "samples")
EPOCHS = number(1e-6, 1e6, "epochs")
SECONDS = number(1e-9, 1e9, "seconds", zero=True)
MILLISECONDS = number(1e-6, 1e6, "milliseconds", zero=True)
BYTES = number(1, 1e12, "bytes")
SHARE = number(1e-6, 1, "", zero=True)
"""From 0 to 1."""
USD_PER_HOUR = number(1e-6, 1e6, "US dollars", zero=True)
COUNT = whole(1, 10**12)
"""A number of another program's file, whose own range its job field checks."""
