"""A table of measured jobs: the CSV file behind the fits and behind `evaluate` (columns: docs/evaluate.md).

What is wrong with the file itself (no table, a cell that is no number) raises one `DataError`; what is wrong with a
job (unknown model, layout not supported) stays with its `Row`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from precision_time.errors import DataError, nearest
from precision_time.job.code import rule_of
from precision_time.measurements.row import Row, row_of
from precision_time.reading import named, read_rows
from precision_time.reading.rows import LARGEST_CSV
from precision_time.reading.text import opened

REQUIRED = ("model", "gpu", "precision", "step_time_s")
"""Columns that every table must have; every other column may be missing or empty."""
OPTIONAL = (
    "id", "source", "trust", "framework", "execution", "model_config", "input", "batch_size", "grad_accum", "gpus",
    "nodes", "system", "parallelism", "optimizer", "memory_format", "attention", "recompute", "torch",
    "optimizer_impl", "ema", "no_sync", "communication_dtype", "notes",
)  # fmt: skip
COUNTS = ("batch_size", "grad_accum", "gpus", "nodes")
LARGEST_COUNT = 10**12
SECONDS = (1e-9, 1e9)
"""Shortest and longest step that can be a measurement; beyond lies a wrong unit."""

MOST_ROWS = 1_000_000
"""Rows of a table; 400 bytes of memory each where rows are equal."""
MOST_DISTINCT = 200_000
"""Rows of a table that differ in another cell than `id`; 3 kB of memory each."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file in their order; `warnings` are sentences about the file."""

    path: Path
    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()


def read_table(
    path: str | Path, *, allow_code: bool = False, progress: Callable[[int, int], None] | None = None
) -> Table:
    """The table in a CSV file; `DataError` in one sentence where it is none or a cell cannot be read.

    Models that are Python files run only with `allow_code`. Rows that differ in `id` alone share one `Job` and all
    texts. `progress(done, total)` counts lines.
    """
    path = Path(path)
    lines = read_rows(path)
    try:
        _, heads = next(lines)
    except StopIteration:
        raise DataError(f"{named('table', path)} is empty; its first line must name the columns") from None
    columns = [head.strip().lower() for head in heads]
    warnings = _check_columns(path, columns)
    rows = _rows(path, columns, lines, allow_code, progress)
    if not rows:
        raise DataError(f"{named('table', path)} has column names but no row; add one line for each measured job")
    names = (row.id for row in rows if row.id != f"line-{row.line}")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        warnings.append(f"{len(twice)} id(s) are on several lines, all of which count: {_some(twice)}")
    return Table(path, tuple(rows), tuple(warnings))


def _rows(
    path: Path,
    columns: Sequence[str],
    lines: Iterable[tuple[int, list[str]]],
    allow_code: bool,
    progress: Callable[[int, int], None] | None,
) -> list[Row]:
    total = _line_count(path)
    if total - 1 > MOST_ROWS + _SPARE_LINES:
        raise _too_many(path, f"{total - 1:,} lines", MOST_ROWS)
    id_at = columns.index("id") if "id" in columns else len(columns)
    known: dict[str, Row] = {}
    rows: list[Row] = []
    first_bad, bad = "", 0
    for line, values in lines:
        name = (values[id_at].strip() if id_at < len(values) else "") or f"line-{line}"
        cells_text = "\x1f".join(values[:id_at] + values[id_at + 1 :])
        same = known.get(cells_text)
        if same is not None:
            rows.append(same.at(line, name))
        else:
            cells = _cells(path, columns, line, values) | {"id": name}
            wrong = _wrong_numbers(cells)
            if wrong:
                first_bad = first_bad or f"{path.name} line {line} (id {name!r}): {wrong[0]}"
                bad += len(wrong)
                continue
            known[cells_text] = row_of(line, cells, rule_of(f"row {name!r} of {path.name}", allow_code))
            rows.append(known[cells_text])
            if len(known) > MOST_DISTINCT:
                raise _too_many(path, f"more than {MOST_DISTINCT:,} distinct rows", MOST_DISTINCT)
        if len(rows) > MOST_ROWS:
            raise _too_many(path, f"more than {MOST_ROWS:,} rows", MOST_ROWS)
        if progress is not None and not len(rows) % _BETWEEN_REPORTS:
            progress(line, total)
    if bad:
        more = f", and {bad - 1:,} more such cells" if bad > 1 else ""
        raise DataError(f"{first_bad}; correct it, or leave the cell empty where it is unknown{more}")
    return rows


_SPARE_LINES = 1000
"""Blank lines, and lines within quotes, that a table of `MOST_ROWS` rows may have in addition."""
_BETWEEN_REPORTS = 2000


def _cells(path: Path, columns: Sequence[str], line: int, values: Sequence[str]) -> dict[str, str]:
    """The cells of a row by column."""
    if len(values) > len(columns):
        raise DataError(
            f"{path.name} line {line} has {len(values)} cells for {len(columns)} columns; "
            "put quotes around a text that holds commas"
        )
    cells = dict.fromkeys(OPTIONAL, "") | dict.fromkeys(REQUIRED, "")
    return cells | {name: cell.strip() for name, cell in zip(columns, values, strict=False) if name in cells}


def _line_count(path: Path) -> int:
    with opened(path, "table", LARGEST_CSV) as file:
        return sum(block.count(b"\n") for block in iter(partial(file.read, 1 << 20), b""))


def _too_many(path: Path, what: str, most: int) -> DataError:
    return DataError(f"{named('table', path)} has {what}, and at most {most:,} are read; divide it into several tables")


def _check_columns(path: Path, columns: Sequence[str]) -> list[str]:
    """A sentence about columns that are ignored; `DataError` where the file is no such table."""
    known = (*REQUIRED, *OPTIONAL)
    if twice := [name for name, times in Counter(columns).items() if name and times > 1]:
        raise DataError(f"{named('table', path)} has the column {twice[0]!r} twice; keep one of them")
    ignored = [name for name in columns if name and name not in known]
    absent = [name for name in known if name not in columns]
    if missing := [name for name in REQUIRED if name in absent]:
        has = _some(columns) if any(columns) else "none with a name"
        fix = "separate columns with commas" if len(columns) == 1 else f"name it in the first line (it has {has})"
        raise DataError(f"{named('table', path)} has no column {_some(missing)}; {fix}")
    if not ignored:
        return []
    typos = [(name, nearest(name, absent, 1)) for name in ignored if _looks_like(name, absent)]
    hint = "".join(f"; {name!r} looks like {meant!r}, which is missing" for name, meant in typos)
    return [f"column(s) ignored: {', '.join(map(repr, ignored))}{hint}"]


def _looks_like(name: str, absent: Sequence[str]) -> bool:
    from difflib import get_close_matches

    return bool(get_close_matches(name, absent, n=1, cutoff=0.75))


def _wrong_numbers(cells: dict[str, str]) -> list[str]:
    """What is wrong with the numeric cells; whole numbers are written plainly ("8.0", as pandas writes, becomes 8)."""
    wrong = []
    for name in COUNTS:
        text = cells[name]
        number = float(text) if _NUMBER.fullmatch(text) else 0.0
        if text and not (1 <= number <= LARGEST_COUNT and number.is_integer()):
            wrong.append(f"{name} is {_short(text)}, not a whole number of at least 1")
        elif text:
            cells[name] = str(int(number))
    text = cells["step_time_s"]
    if text and not (_NUMBER.fullmatch(text) and SECONDS[0] <= float(text) <= SECONDS[1]):
        wrong.append(f"step_time_s is {_short(text)}, not a number of seconds above 0")
    return wrong


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _some(names: Sequence[str], count: int = 8) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count:,} more" if len(names) > count else "")
