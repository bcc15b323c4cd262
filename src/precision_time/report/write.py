"""Output files and folders: checked before the work, written whole or not at all, and never over an input."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError


def write_whole(path: str | Path, content: bytes | str, inputs: Iterable[str | Path] = ()) -> None:
    """Write `content` (text as UTF-8) to a temporary file beside `path`, then rename it to `path`.

    A reader sees the old file or the whole new one. Raises `DataError` when the file cannot be written, or when
    `path` is one of `inputs`, the files that the content was made from.
    """
    target = Path(path)
    for source in inputs:
        if target.exists() and Path(source).exists() and target.samefile(source):
            raise DataError(f"file {str(path)!r} is an input of this command; give another path")
    try:
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content.encode() if isinstance(content, str) else content)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(part, 0o666 & ~umask)
            os.replace(part, target)
        except BaseException:
            os.unlink(part)
            raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"file {str(path)!r} cannot be written: {reason}; give another path") from None


def check_file(name: str, path: str | Path) -> None:
    """Raise `DataError` unless `path` is a file, or a new name in a folder that can be written to.

    `name` is the flag or field that the error names.
    """
    target = Path(path)
    if target.is_dir():
        raise DataError(f"{name} {str(path)!r} is a folder; name a file in it")
    _check_parent(name, target)
    if not os.access(target.parent, os.W_OK):
        raise DataError(f"{name} {str(path)!r}: the folder {str(target.parent)!r} cannot be written to; name another")


def check_folder(name: str, path: str | Path) -> None:
    """Raise `DataError` where `path` is there and no folder."""
    if Path(path).exists() and not Path(path).is_dir():
        raise DataError(f"{name} {str(path)!r} is a file; name a folder")


def make_folder(path: str | Path, name: str = "output", parents: bool = False) -> Path:
    """The folder, made where it is not there yet, with its `parents` or not. Raises `DataError` where it cannot be."""
    folder = Path(path)
    check_folder(name, folder)
    if not parents:
        _check_parent(name, folder)
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(f"{name} {str(path)!r} cannot be made: {reason}; give another folder") from None
    return folder


def _check_parent(name: str, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise DataError(f"{name} {str(path)!r}: there is no folder {str(path.parent)!r}; make it first")


def compact_json(content: Mapping[str, Any]) -> str:
    """Indented JSON with each innermost list on one line, so that two versions can be compared line by line."""
    text = json.dumps(content, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m.group(1)) + "]", text)
