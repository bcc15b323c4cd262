"""Reads a folder that `precision-time measure` wrote: its device, and its records in the form of the journal.

Without the journal, the same facts are read from the operator table and the data card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_time.errors import DataError
from precision_time.journal import read as read_journal
from precision_time.reading import parse_json, read_records, read_text

JOURNAL = "journal.jsonl"
TABLES = ("operators.parquet", "operators.csv")
_CARD = re.compile(r"^# Measurements on (.+)$", re.MULTILINE)
_TENSOR = re.compile(r"(\w+)\[([\d,]*)\]")
Record = Mapping[str, Any]


def content(folder: Path) -> tuple[str, Sequence[Record], Sequence[Record], Path]:
    """Name of the device, points and updates in the form of the journal, and the file with the points.

    Raises `DataError` where the folder is not one of `measure`.
    """
    label = f"measured {str(folder)!r}"
    table = next((folder / name for name in (JOURNAL, *TABLES) if (folder / name).is_file()), None)
    if table is None:
        raise DataError(
            f"{label} is not a folder that `precision-time measure` wrote: it has no {JOURNAL}; check --measured"
        )
    try:
        if table.name == JOURNAL:
            header, records, _ = read_journal(table)
            points = [point for record in records.values() for point in record.get("points", ())]
            return str(header["gpu"]), points, [r for r in records.values() if "update" in r], table
        device = _CARD.findall(read_text(folder / "README.md"))[0]
        updates = folder / "updates.csv"
        update_rows = [_numbers(row) for row in _rows(updates)] if updates.is_file() else []
        return device, [_point_of(row) for row in _rows(table)], update_rows, table
    except (DataError, KeyError, TypeError, ValueError, IndexError, OSError) as error:
        raise DataError(
            f"{label}: {table.name} and its README.md are not what `precision-time measure` writes "
            f"({type(error).__name__}); check --measured"
        ) from error


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".csv":
        yield from (row for _, row in read_records(path, ()))
    else:
        import pyarrow.parquet as pq

        yield from pq.read_table(path).to_pylist()


def _point_of(row: Mapping[str, Any]) -> Record:
    """A row of the operator table in the form of the journal."""
    tensors = {
        side: [[[int(n) for n in shape.split(",") if n], dtype] for dtype, shape in _TENSOR.findall(row[side])]
        for side in ("inputs", "outputs")
    }
    flags = {name: str(row[name]) == "True" for name in ("tf32", "nhwc", "outlier")}
    operator = str(row["operator"]).partition(":")[0]
    return {**_numbers(row), **tensors, **flags, "operator": operator, "attrs": parse_json(row["attrs"], "attrs")}


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("seconds", "spread", "samples", "slowest", "host_s")
    return {**row, **{name: float(row[name]) for name in names if name in row}}
