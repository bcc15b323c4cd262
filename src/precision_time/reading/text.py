"""Files as text: regular files of limited size, in UTF-8, without control characters."""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from precision_time.checks import show
from precision_time.errors import DataError

LARGEST_BYTES = 16 * 2**20
"""Largest file that is read as a whole."""

LARGEST_SAVED = 64 * 2**20
"""The same for what the program has saved itself."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters other than tab, line feed, form feed and carriage return, on some of which terminals act; and
halves of surrogate pairs, which cannot be written."""

_KINDS = (
    (stat.S_ISDIR, "it is a folder; name a file in it"),
    (stat.S_ISFIFO, "it is a pipe; write what it gives to a file, and name that"),
    (lambda mode: True, "it is a device or a socket; name a file"),
)


def named(kind: str, path: str | Path) -> str:
    """Kind and path of a file as errors name it."""
    return f"{kind} {show(str(path), 200)}"


@contextmanager
def opened(path: str | Path, kind: str, largest: int) -> Iterator[BinaryIO]:
    """A regular file of at most `largest` bytes, open for reading; what fails while it is read is a `DataError`.

    Others are refused before they are opened: a pipe would block, /dev/zero has no end, opening a device may act on it.
    """
    name = named(kind, path)
    try:
        with _regular(path, name, largest) as file:
            yield file
    except OSError as error:
        raise DataError(f"{name} cannot be read: {(error.strerror or str(error)).lower()}; check the path") from None


def _regular(path: str | Path, name: str, largest: int) -> BinaryIO:
    try:
        state = os.stat(path)
    except ValueError as error:  # a NUL byte in the path
        raise DataError(f"{name} cannot be read: {error}; check the path") from None
    if not stat.S_ISREG(state.st_mode):
        raise DataError(f"{name} cannot be read: {next(fix for test, fix in _KINDS if test(state.st_mode))}")
    if state.st_size > largest:
        raise _too_large(name, largest)
    return open(path, "rb")


def read_bytes(path: str | Path, kind: str = "file", largest: int = LARGEST_BYTES) -> bytes:
    """The content of a regular file of at most `largest` bytes; otherwise `DataError`."""
    with opened(path, kind, largest) as file:
        content = file.read(largest + 1)  # a file of /proc states no size
    if len(content) > largest:
        raise _too_large(named(kind, path), largest)
    return content


def read_text(path: str | Path, kind: str = "file", largest: int = LARGEST_BYTES) -> str:
    """The text of a file, its line ends as line feeds and without byte order mark; otherwise `DataError`."""
    return decoded(read_bytes(path, kind, largest), named(kind, path))


def read_member(path: str | Path, member: str, kind: str = "archive", largest: int = LARGEST_SAVED) -> str:
    """The text of a member of a zip archive, of at most `largest` bytes unpacked; otherwise `DataError`."""
    name = named(kind, path)
    try:
        with opened(path, kind, largest) as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo(member).file_size > largest:  # no more than it states is unpacked
                raise _too_large(f"{member} of {name}", largest)
            return decoded(archive.read(member), f"{member} of {name}")
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is no archive with {member} ({type(error).__name__}); make it again") from None


def decoded(content: bytes, name: str) -> str:
    """UTF-8 as `read_text` gives it; `name` is the file in errors."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return checked_text(text.replace("\r\n", "\n").replace("\r", "\n"), name)


def checked_text(text: str, name: str, first_line: int = 1) -> str:
    """The text, which starts at line `first_line` of the file; `DataError` where it has control characters."""
    if match := CONTROL.search(text):
        line = first_line + text.count("\n", 0, match.start())
        raise DataError(f"{name} has the control character {match[0]!r} at line {line}; remove it, or save it as text")
    return text


def _too_large(name: str, largest: int) -> DataError:
    return DataError(f"{name} is larger than {size_text(largest)}, the most that is read; give a smaller file")


def size_text(nbytes: int) -> str:
    """Bytes in MiB or KiB."""
    return f"{nbytes // 2**20} MiB" if nbytes >= 2**20 else f"{nbytes // 2**10} KiB"
