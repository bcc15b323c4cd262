"""Text that is safe to print: control characters of names and files never reach a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but line feed and tab, line separators, marks that reorder text, and halves of characters."""


def printable(text: str) -> str:
    """The text with control characters as escapes (`\\u001b`), which are those of JSON, so that JSON stays JSON."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
