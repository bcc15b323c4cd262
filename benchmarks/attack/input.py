"""One input of the attacks, and how its values become arguments."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Input:
    """One input: a command line, or a call of a Python function with its description."""

    kind: str
    arguments: tuple[str, ...] = ()
    call: Call | None = None
    description: str = ""

    def words(self, folder: Path) -> set[str]:
        """All that the input calls something, also within its files: a device may be called "nan"."""
        files = [path for path in folder.iterdir() if path.is_file()]
        texts = [*self.arguments, *(path.read_bytes().decode("utf-8", "replace") for path in files)]
        return {word for text in texts for word in re.findall(r"[\w.+-]+", text)}

    def show(self, folder: Path) -> str:
        """The input as text, with the contents of the files that it names."""
        if self.call is not None:
            return self.description
        lines = [" ".join(repr(each[:300]) for each in self.arguments)]
        for each in self.arguments:
            path = folder / each if each and "\x00" not in each and len(each) < 200 else None
            if path is not None and path.is_file() and path.parent == folder:
                lines.append(f"--- {each}\n{path.read_bytes()[:1500].decode('utf-8', 'backslashreplace')}")
        return "\n".join(lines)


def as_argument(value: Any) -> str:
    """A value as an argument; Python writes no integer of more than 4,300 digits."""
    return "9" * 5000 if isinstance(value, int) and abs(value) > 10**300 else str(value)


def as_json(source: random.Random) -> tuple[str, ...]:
    """The flag --json, or not."""
    return ("--json",) if source.random() < 0.6 else ()
