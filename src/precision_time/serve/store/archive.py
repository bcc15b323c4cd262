"""Backup and restore: one gzip file of JSON lines that either kind of database writes and reads.

The first line is a header, the last one has the numbers of records and the SHA-256 of all lines before it; in between
are the predictions by id and the outcomes by number. A backup is one moment of the database, while writers go on.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import json
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from precision_time.errors import DataError, JobError
from precision_time.reading import named
from precision_time.reading.text import opened
from precision_time.report.write import write_whole
from precision_time.serve.records import Outcome, Prediction
from precision_time.serve.store.rows import OUTCOME_COLUMNS, PREDICTION_COLUMNS, outcome_of, prediction_of
from precision_time.serve.store.sql_store import SqlStore
from precision_time.serve.store.transactions import Session

FORMAT = 1
KIND = "precision-time store"
LARGEST_ARCHIVE = 64 * 2**30
LONGEST_LINE = 20 * 2**20
_PAGE = 200
_TOGETHER = 500
"""Records that are restored in one transaction."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of an archive, or that a restore added."""

    predictions: int
    outcomes: int


def back_up(store: SqlStore, path: str | Path) -> Counts:
    """Write all records to a file, which is replaced whole. Raises `StoreError`, or `DataError` for the file."""

    def work(session: Session) -> Counts:
        counts = [0, 0]
        write_whole(path, _compressed(_lines(session, counts)))
        return Counts(*counts)

    return store.in_snapshot(work)


def restore(store: SqlStore, path: str | Path) -> Counts:
    """Add all records of a backup that are not there; returns how many were new.

    The file is checked as a whole before anything is written. A restore that was stopped is repeated. In an empty store
    outcomes keep their numbers; in another one they follow those that are there. A prediction whose key another one
    has there is left out, and its outcomes go to that one.
    """
    check_backup(path)
    predictions = outcomes = 0
    renamed: dict[str, str] = {}
    for batch in _batches(path):
        added = store.add_together([_renamed(record, renamed) for record in batch])
        renamed |= added.renamed
        predictions += added.predictions
        outcomes += added.outcomes
    return Counts(predictions, outcomes)


def _batches(path: str | Path) -> Iterator[list[Prediction | Outcome]]:
    """Predictions come first, and none is in one batch with outcomes, so that its id is known when they are added."""
    for _, group in itertools.groupby(_records(path), type):
        while batch := list(itertools.islice(group, _TOGETHER)):
            yield batch


def _renamed(record: Prediction | Outcome, renamed: Mapping[str, str]) -> Prediction | Outcome:
    if isinstance(record, Outcome) and record.prediction in renamed:
        return dataclasses.replace(record, prediction=renamed[record.prediction])
    return record


def check_backup(path: str | Path) -> Counts:
    """Numbers of the records of a backup. Raises `DataError` where it is none, damaged or cut short."""
    digest = hashlib.sha256()
    counts = [0, 0]
    end: dict[str, Any] | None = None
    for line in _read(path):
        if end is not None:
            raise _damaged(path, "lines follow its end")
        content = _content(path, line)
        if "end" in content:
            end = content["end"]
            continue
        digest.update(line)
        counts[0] += "prediction" in content
        counts[1] += "outcome" in content
    if end is None:
        raise _damaged(path, "its end is missing")
    if end != {"predictions": counts[0], "outcomes": counts[1], "sha256": digest.hexdigest()}:
        raise _damaged(path, "its digest is another one")
    return Counts(*counts)


def _lines(session: Session, counts: list[int]) -> Iterator[str]:
    digest = hashlib.sha256()

    def line(content: dict[str, Any]) -> str:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"
        digest.update(text.encode())
        return text

    yield line({"kind": KIND, "format": FORMAT, "made_at": time.time(), "precision_time": _version()})
    columns = ", ".join(PREDICTION_COLUMNS)
    last: Any = ""
    while rows := session.rows(f"SELECT {columns} FROM predictions WHERE id > ? ORDER BY id LIMIT {_PAGE}", (last,)):
        for row in rows:
            yield line({"prediction": dataclasses.asdict(prediction_of(row))})
        counts[0] += len(rows)
        last = rows[-1][0]
    columns, last = ", ".join(OUTCOME_COLUMNS), 0
    statement = f"SELECT number, {columns} FROM outcomes WHERE number > ? ORDER BY number LIMIT {_PAGE}"
    while rows := session.rows(statement, (last,)):
        for row in rows:
            yield line({"outcome": dataclasses.asdict(outcome_of(row[1:]))})
        counts[1] += len(rows)
        last = rows[-1][0]
    end = {"predictions": counts[0], "outcomes": counts[1], "sha256": digest.hexdigest()}
    yield json.dumps({"end": end}) + "\n"


def _compressed(lines: Iterator[str]) -> Iterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: with the header of gzip
    for line in lines:
        yield packer.compress(line.encode())
    yield packer.flush()


def _read(path: str | Path) -> Iterator[bytes]:
    """The lines, the header among them, which is checked."""
    with opened(path, "backup", LARGEST_ARCHIVE) as file:
        try:
            yield from _lines_of(path, gzip.GzipFile(fileobj=file))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{named('backup', path)} is no whole gzip file ({error}); take another backup") from None


def _lines_of(path: str | Path, stream: gzip.GzipFile) -> Iterator[bytes]:
    first = True
    with stream:
        while line := stream.readline(LONGEST_LINE):
            if not line.endswith(b"\n"):
                raise _damaged(path, "a line is too long or cut short")
            if first:
                _check_header(path, _content(path, line))
            first = False
            yield line
    if first:
        raise _damaged(path, "it is empty")


def _check_header(path: str | Path, header: dict[str, Any]) -> None:
    if header.get("kind") != KIND:
        raise DataError(f"{named('backup', path)} is no backup; name a file of `precision-time store backup`")
    if header.get("format") != FORMAT:
        raise DataError(
            f"{named('backup', path)} has format {header.get('format')!r}, and this precision-time reads {FORMAT}; "
            "install a newer precision-time"
        )


def _records(path: str | Path) -> Iterator[Prediction | Outcome]:
    for line in _read(path):
        content = _content(path, line)
        try:
            if "prediction" in content:
                given = content["prediction"]
                yield Prediction(**{**given, "predicted": tuple(given["predicted"])})
            elif "outcome" in content:
                given = content["outcome"]
                yield Outcome(**{**given, "steps_s": tuple(given["steps_s"])})
        except (TypeError, KeyError, JobError) as error:
            raise _damaged(path, f"a record is malformed: {error}") from None


def _content(path: str | Path, line: bytes) -> dict[str, Any]:
    """The mapping in a line. Texts of a store may have any characters, which other files of a user may not."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"a line is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise _damaged(path, "a line holds no mapping")
    return content


def _damaged(path: str | Path, reason: str) -> DataError:
    return DataError(f"{named('backup', path)} is damaged ({reason}); take another backup")


def _version() -> str | None:
    try:
        return version("precision-time")
    except PackageNotFoundError:
        return None
