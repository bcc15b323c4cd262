"""Where a command will write: what could not be written is a sentence before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from precision_time.cli.parser import UsageError


def check_file(flag: str, path: str | Path) -> None:
    """A file that is there or can be made."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{flag} {str(path)!r} is a folder; name a file in it")
    check_parent(flag, path)
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{flag} {str(path)!r}: the folder {str(target.parent)!r} cannot be written to; name another")


def check_folder(flag: str, path: str | Path) -> None:
    """A folder, or nothing yet."""
    if Path(path).exists() and not Path(path).is_dir():
        raise UsageError(f"{flag} {str(path)!r} is a file; name a folder")


def check_parent(flag: str, path: str | Path) -> None:
    """The folder that it is to lie in."""
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"{flag} {str(path)!r}: there is no folder {str(Path(path).parent)!r}; make it first")
