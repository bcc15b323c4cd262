"""TOML text, read within the limits of `values`."""

from __future__ import annotations

import re
import sys
from typing import Any

from precision_time.errors import DataError
from precision_time.reading.text import size_text
from precision_time.reading.values import DEEPEST, TOO_DEEP, checked_tree

LARGEST_TOML = 256 * 2**10
"""Most characters of a TOML file: Python's reader is slow."""

_NAME = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_NAME}[ \t]*\.[ \t]*){{{DEEPEST}}}", re.MULTILINE)
"""A dotted key that is too deep; Python's reader takes the square of its parts in time."""


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The mapping of TOML text; `DataError` names the file by `name`, and the line or the field."""
    if sys.version_info < (3, 11):
        raise DataError(f"{name} is TOML, which Python reads from 3.11 on; use a newer Python, or give it as JSON")
    import tomllib

    if len(text) > LARGEST_TOML:
        raise DataError(f"{name} is larger than {size_text(LARGEST_TOML)}, the most TOML that is read; shorten it")
    if _LONG_KEY.search(text):
        raise DataError(f"{name} has {TOO_DEEP}")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise DataError(f"{name} has {TOO_DEEP}") from None
    except ValueError as error:  # also of a date that no calendar has
        raise DataError(f"{name} is not valid TOML: {str(error).lower()}; correct it") from None
    checked: dict[str, Any] = checked_tree(tree, name)
    return checked
