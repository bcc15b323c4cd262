"""What was measured so far, one JSON line a task, written as it comes: an interruption loses the task under way.

The first line says what was measured with what; a journal of another machine or another PyTorch is not continued.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_time.errors import MeasureError

FORMAT = 1
Record = dict[str, Any]


def made_folder(path: str | Path) -> Path:
    """The folder that a journal lies in, made where it is not there yet. Raises `MeasureError` where it cannot be."""
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise MeasureError(f"output {str(path)!r} is a file; name a folder")
    if not folder.absolute().parent.is_dir():
        raise MeasureError(f"output {str(path)!r}: there is no folder {folder.parent}; make it first")
    folder.mkdir(exist_ok=True)
    return folder


class Journal:
    """Records by the label of their task; with a path they are also kept in that file, and those in it are continued.

    Raises `MeasureError` where the file cannot be read or was begun under another header.
    """

    def __init__(self, path: str | Path | None = None, header: Mapping[str, Any] | None = None) -> None:
        self.records: dict[str, Record] = {}
        self._path = None if path is None else Path(path)
        self._header = {"format": FORMAT, **(header or {})}
        if self._path is None:
            return
        if self._path.exists() and self._path.stat().st_size:
            self._continue(self._path)
        else:
            self._path.write_text(json.dumps({"header": self._header}) + "\n", encoding="utf-8")

    def add(self, label: str, record: Record) -> None:
        """Keep a task's record, at once and for good."""
        self.records[label] = record
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"label": label, **record}) + "\n")

    def __contains__(self, label: str) -> bool:
        return label in self.records

    def __len__(self) -> int:
        return len(self.records)

    def _continue(self, path: Path) -> None:
        header, self.records, whole = read(path)
        for key, value in self._header.items():
            if header.get(key) != value:
                raise MeasureError(
                    f"{path} was begun with {key} {header.get(key)!r}, but this is {value!r}; "
                    "continue it there, delete it, or name another output"
                )
        if whole < path.stat().st_size:  # the line under way when it was interrupted
            with path.open("r+b") as file:
                file.truncate(whole)


def read(path: str | Path) -> tuple[Record, dict[str, Record], int]:
    """Header, records by label, and how many bytes of the file are whole lines; `MeasureError` if it is no journal."""
    header: Record = {}
    records: dict[str, Record] = {}
    whole = 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    break
                said = json.loads(line)
                whole += len(line)
                if number == 0:
                    header = said["header"]
                else:
                    records[said.pop("label")] = said
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MeasureError(
            f"{path} is no journal of measurements ({type(error).__name__}); delete it, or name another output"
        ) from error
    if not header:
        raise MeasureError(
            f"{path} is no journal of measurements (it has no header); delete it, or name another output"
        )
    return header, records, whole
