"""An append-only journal of measurements: JSON lines in a file, so that interrupted work continues where it ended.

The first line holds the header: the conditions under which all records are made, for example the machine. Every other
line is one record with its label. Each is on the disk before `add` returns; a last line that a crash cut short is
dropped when the journal is opened again, and one that a full disk or a signal cut short is taken back at once. `held`
keeps a second process from adding to a journal.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.reading import decoded, opened, parse_json, to_json

try:
    import fcntl
except ImportError:  # Windows, where nothing is held
    fcntl = None  # type: ignore[assignment]

FORMAT = 1
LARGEST_JOURNAL = 256 * 2**20
"""Largest journal, in bytes; its lines are read one by one."""
_CHECKSUM = "crc32"
"""Key of each line with the checksum of the rest, which tells a damaged journal from a whole one."""
Record = dict[str, Any]


class Journal:
    """Records by label, kept in the file at `path`, or in memory alone without one.

    A file that is there is continued; the last record of a label counts. `fresh` leaves the records of the file unread.
    Raises `DataError` where the file cannot be used, is no journal, or was begun under another `header`.
    """

    def __init__(
        self, path: str | Path | None = None, header: Mapping[str, Any] | None = None, fresh: bool = False
    ) -> None:
        self.records: dict[str, Record] = {}
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        header = {"format": FORMAT, **(header or {})}
        try:
            if self._path.exists() and self._path.stat().st_size:
                self._continue(self._path, header)
            else:
                self._append(self._path, {"header": header})
        except OSError as error:
            raise _unusable(self._path, error) from None
        if fresh:
            self.records = {}

    def get(self, label: str) -> Record | None:
        """The last record of this label, or None."""
        return self.records.get(label)

    def add(self, label: str, record: Mapping[str, Any]) -> Record:
        """Keep a record; it is on the disk when this returns. Raises `DataError` where it cannot be written."""
        kept = dict(record)
        if self._path is not None:
            try:
                self._append(self._path, {"label": label, **kept})
            except OSError as error:
                raise _unusable(self._path, error) from None
        self.records[label] = kept
        return kept

    def __contains__(self, label: str) -> bool:
        return label in self.records

    def __len__(self) -> int:
        return len(self.records)

    def _continue(self, path: Path, expected: Mapping[str, Any]) -> None:
        header, self.records, complete_bytes = read(path)
        for key, value in expected.items():
            if header.get(key) != value:
                raise DataError(
                    f"{path} was begun with {key} {header.get(key)!r}, but this is {value!r}; "
                    "continue it there, delete it, or name another output"
                )
        if complete_bytes < path.stat().st_size:
            with path.open("r+b") as file:
                file.truncate(complete_bytes)

    @staticmethod
    def _append(path: Path, content: Mapping[str, Any]) -> None:
        text = to_json(content)
        line = memoryview(to_json({**content, _CHECKSUM: _checksum(text)}).encode() + b"\n")
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            before = os.fstat(handle).st_size
            try:
                while line:
                    line = line[os.write(handle, line) :]
                os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, before)
                raise
        finally:
            os.close(handle)


_held: dict[str, tuple[int, int]] = {}
"""By path of a journal: the thread that holds it, and how many times."""


@contextlib.contextmanager
def held(path: str | Path, what: str | None = None, instead: str = ", or name another output") -> Iterator[None]:
    """Keep other processes and threads from the journal at `path` while the block runs; a thread may hold it twice.

    Work without a journal is held by an empty file, which goes with the block. `what` the errors name in place of the
    journal, and `instead` what they advise besides to wait. Raises `DataError` where another one holds it, or where
    the file cannot be made.
    """
    name, thread = os.path.realpath(path), threading.get_ident()
    if _held.get(name, (0, 0))[0] == thread:
        _held[name] = thread, _held[name][1] + 1
        try:
            yield
        finally:
            _held[name] = thread, _held[name][1] - 1
        return
    handle = _locked(name, what or f"journal {str(path)!r}", instead)
    try:
        _held[name] = thread, 1
        try:
            yield
        finally:
            del _held[name]
            if not os.fstat(handle).st_size:  # nothing was measured
                with contextlib.suppress(OSError):
                    os.unlink(name)
    finally:
        os.close(handle)


def _locked(name: str, what: str, instead: str) -> int:
    """The open file, locked by this process. A file that its last holder removed meanwhile is made again."""
    while True:
        try:
            handle = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise DataError(f"{what} cannot be used: {_reason(error)}{instead.replace(', or', ';')}") from None
        try:
            _lock(handle, what, instead)
            if os.path.exists(name) and os.path.samestat(os.fstat(handle), os.stat(name)):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, what: str, instead: str) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"{what} is in use by another process; wait for its end{instead}") from None
    except OSError:  # a file system without locks
        return


def begin_again(path: str | Path) -> None:
    """Empty a journal that is there."""
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, 0)


def read(path: str | Path) -> tuple[Record, dict[str, Record], int]:
    """Header, records by label, and the number of bytes in complete lines. Raises `DataError` if it is no journal."""
    header: Record = {}
    records: dict[str, Record] = {}
    complete_bytes = 0
    with opened(path, "journal", LARGEST_JOURNAL) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            complete_bytes += len(line)
            content = _content(line, path, number)
            if number == 1 and "key" not in content:
                header = _header(content, path)
                continue
            # Journals of staggered jobs had no header before, and named the label "key".
            header = header or {"format": FORMAT}
            label = content.pop("label", None) or content.pop("key", None)
            if not isinstance(label, str):
                raise _no_journal(path, f"line {number} has no label")
            records[label] = content
    if not header:
        raise _no_journal(path, "it has no header")
    return header, records, complete_bytes


def _content(line: bytes, path: str | Path, number: int) -> Record:
    """The mapping in a line, whose checksum is right; lines of earlier versions have none."""
    try:
        content = parse_json(decoded(line, f"line {number}"), f"line {number}")
    except DataError as error:
        raise _no_journal(path, str(error)) from None
    if not isinstance(content, dict):
        raise _no_journal(path, f"line {number} holds no mapping")
    if (checksum := content.pop(_CHECKSUM, None)) is not None and checksum != _checksum(to_json(content)):
        raise _no_journal(path, f"line {number} was changed")
    return content


def _header(content: Record, path: str | Path) -> Record:
    header = content.get("header")
    if not isinstance(header, dict):
        raise _no_journal(path, "it has no header")
    return header


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _unusable(path: str | Path, error: OSError) -> DataError:
    return DataError(f"journal {str(path)!r} cannot be used: {_reason(error)}; name another output")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _no_journal(path: str | Path, reason: str) -> DataError:
    return DataError(f"{path} is no journal of measurements ({reason}); delete it, or name another output")
