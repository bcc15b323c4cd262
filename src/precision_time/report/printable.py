"""Text that is safe to print: control characters of names and files never reach a terminal."""

from __future__ import annotations

import json
import re

_NOT_ASCII = re.compile(r"[^\x20-\x7e\n\t]")


def printable(text: str) -> str:
    """The text with all that is not printable, but line feeds and tabs, as escapes (`\\u001b`).

    These are control and format characters, separators and halves of characters. The escapes are those of JSON, so that
    JSON stays JSON.
    """
    return _NOT_ASCII.sub(lambda match: match[0] if match[0].isprintable() else _escaped(match[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else json.dumps(character)[1:-1]
