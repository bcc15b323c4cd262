"""JSON text: read within the limits of `values`, and written without NaN and infinity."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.reading.text import LARGEST_BYTES, named, read_text
from precision_time.reading.values import LONGEST_NUMBER, MOST_VALUES, TOO_DEEP, checked_tree, too_many

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def read_json(
    path: str | Path,
    kind: str = "file",
    largest: int = LARGEST_BYTES,
    most: int = MOST_VALUES,
    infinity_as_null: bool = False,
) -> Any:
    """The value in a JSON file; otherwise `DataError`."""
    return parse_json(read_text(path, kind, largest), named(kind, path), most, infinity_as_null)


def parse_json(text: str, name: str, most: int = MOST_VALUES, infinity_as_null: bool = False) -> Any:
    """The value of JSON text, of at most `most` values in all.

    `infinity_as_null`: Infinity, which JSON does not have but Python writes, is read as null instead of refused.
    `DataError` names the file by `name`, and the line or the field.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            raise DataError(f"{name} gives {show(twice)} twice; keep one of them")
        return result

    def whole(digits: str) -> int:
        if len(digits) > LONGEST_NUMBER:  # int() takes the square of the digits in time
            raise DataError(f"{name} has a number of {len(digits):,} digits; correct it")
        return int(digits)

    def no_number(word: str) -> Any:
        if infinity_as_null and word.endswith("Infinity"):
            return None
        raise DataError(f"{name} has {word}, which is no JSON number; give a finite number or null")

    # Values are counted by their commas before they are made: making millions of them takes seconds and a GB.
    if text.count(",") >= most and _STRING.sub("", text).count(",") >= most:
        raise DataError(f"{name} has {too_many(most)}")
    try:
        tree = json.loads(text, object_pairs_hook=unique, parse_int=whole, parse_constant=no_number)
    except json.JSONDecodeError as error:
        raise DataError(f"{name} is not valid JSON at line {error.lineno}: {error.msg}; correct that line") from None
    except RecursionError:
        raise DataError(f"{name} has {TOO_DEEP}") from None
    return checked_tree(tree, name, most)


def to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON text of a result; `options` are those of `json.dumps`.

    Raises `DataError` for NaN and infinity, which JSON does not have and other programs refuse.
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False, **options)
    except ValueError as error:
        raise DataError(f"a number of the result is not finite, so it is not written as JSON ({error})") from error
