"""Limits of the values in a file, whatever its format, and the check of a parsed tree of values."""

from __future__ import annotations

from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.reading.text import CONTROL

DEEPEST = 32
"""Most mappings and lists inside each other."""
MOST_VALUES = 500_000
"""Most values of a file."""
MOST_SAVED_VALUES = 5_000_000
"""The same of what the program has saved itself."""
MOST_DIGITS = 30
"""Most digits of a whole number."""
LONGEST_NUMBER = 100
"""Most characters of a number."""
LONGEST_KEY = 500
"""Most characters of a key, which errors name."""
SMALLEST, LARGEST = 1e-300, 1e300
"""Least and largest number; the factor to the limits of a float leaves room for changes of units."""

TOO_DEEP = f"more than {DEEPEST} mappings and lists inside each other; flatten it"
_LARGEST_WHOLE = 10**MOST_DIGITS


def too_many(most: int = MOST_VALUES) -> str:
    """What is wrong with a file of more than `most` values, and the fix."""
    return f"more than {most:,} values; give a smaller file"


def fault_of(value: Any) -> str:
    """What is wrong with a single value, and the fix; "" where nothing is."""
    kind = type(value)
    if kind is str:
        return "has a control character; remove it" if CONTROL.search(value) else ""
    if kind is float:
        fits = value == 0.0 or SMALLEST <= abs(value) <= LARGEST  # false for NaN
        return "" if fits else f"is no number from {SMALLEST:g} to {LARGEST:g}; correct it"
    if kind is int:
        fits = -_LARGEST_WHOLE < value < _LARGEST_WHOLE
        return "" if fits else f"has more than {MOST_DIGITS} digits; correct it"
    return "" if value is None or kind is bool else "is no text, number, true or false; put it into quotes"


def fault_of_key(key: str) -> str:
    """What is wrong with a key, and the fix; "" where nothing is."""
    return fault_of(key) or (f"has more than {LONGEST_KEY} characters; shorten it" if len(key) > LONGEST_KEY else "")


def checked_tree(tree: Any, name: str, most: int = MOST_VALUES) -> Any:
    """The tree of dicts, lists and at most `most` values in all, within the limits; otherwise `DataError`.

    It is walked level by level, so that neither its depth nor a list that holds itself can harm.
    """
    level, seen = [tree], 0
    for _ in range(DEEPEST + 1):
        seen += len(level)
        if seen > most:
            raise DataError(f"{name} has {too_many(most)}")
        inner: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                if any(type(key) is not str or fault_of_key(key) for key in value):
                    raise _wrong(tree, name)
                inner += value.values()
            elif kind is list:
                inner += value
            elif fault_of(value):
                raise _wrong(tree, name)
            if len(inner) > most:
                raise DataError(f"{name} has {too_many(most)}")
        if not inner:
            return tree
        level = inner
    raise DataError(f"{name} has {TOO_DEEP}")


def _wrong(tree: Any, name: str) -> DataError:
    """The error of the first faulty value or key, with the path to it."""
    waiting: list[tuple[str, Any]] = [("", tree)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            for key in value:
                if type(key) is not str or fault_of_key(key):
                    place = show(path, 100) if path else "its mapping"
                    return DataError(f"{name} has the key {show(key)} in {place}; write a plain name")
            waiting += reversed([(f"{path}.{key}".lstrip("."), each) for key, each in value.items()])
        elif isinstance(value, list):
            waiting += reversed([(f"{path}[{index}]", each) for index, each in enumerate(value)])
        elif fault := fault_of(value):
            place = path if path.isprintable() and len(path) <= 100 else show(path, 100)
            return DataError(f"{name}: {place or 'it'} {fault} ({show(value)})")
    raise AssertionError("only a faulty tree comes here")
