"""CSV tables to record: of outcomes by the id of their prediction, or of measured jobs as `evaluate` reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from precision_time.errors import DataError, JobError
from precision_time.measurements.table import read_table
from precision_time.reading import named, read_rows
from precision_time.serve.recording.runs import MEASURES, Measured, Run, reason


def has_predictions(path: str | Path) -> bool:
    """Whether the table has outcomes by prediction: a column of that name."""
    for _, heads in read_rows(path):
        return "prediction" in [head.strip().lower() for head in heads]
    raise DataError(f"{named('table', path)} is empty; its first line must name the columns")


def outcomes_of(path: str | Path) -> Iterator[tuple[str, Measured]]:
    """The id of the prediction and the values of each row. Raises `DataError` with the line.

    Columns: `prediction`, and of `key`, `step_s`, `run_s`, `peak_bytes`, `finished` those that are known; any other is
    of the machine. Without a key the content of the row is one.
    """
    lines = read_rows(path)
    columns = [head.strip().lower() for head in next(lines)[1]]
    for line, values in lines:
        cells = {name: value.strip() for name, value in zip(columns, values, strict=False) if value.strip()}
        prediction = cells.pop("prediction", "")
        content = "\x1f".join([prediction, *(f"{name}={cells[name]}" for name in sorted(cells))])
        key = cells.pop("key", "") or f"row-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
        given = {name: cells.pop(name) for name in MEASURES if name in cells}
        if not prediction:
            raise DataError(f"{named('table', path)} names no prediction in line {line}; give its id")
        try:
            yield prediction, Measured.of_texts(key, given, cells)
        except JobError as error:
            raise DataError(f"{named('table', path)} line {line}: {reason(error)}") from None


def runs_of(path: str | Path, allow_code: bool = False) -> tuple[list[Run], list[str]]:
    """The measured jobs of a table, and a sentence for each row that is none. Raises `DataError` for the file."""
    runs, refused = [], []
    for row in read_table(path, allow_code=allow_code).rows:
        if row.job is None:
            refused.append(f"row {row.id!r}: {row.reason}")
            continue
        name = "" if row.id == f"line-{row.line}" else row.id
        digest = hashlib.sha256(f"{name}\x1f{row.digest}\x1f{row.job.to_dict()}".encode()).hexdigest()[:32]
        machine = {key: value for key, value in (("row", name), ("source", row.source), ("trust", row.trust)) if value}
        measured = Measured(key=f"row-{digest}", step_s=row.measured_s, finished=True, machine=machine)
        runs.append(Run(f"row-{digest}", row.job, measured, framework=row.kernels_of or None))
    return runs, refused
