"""Filters of the rows of a table by trust, precision, GPU, model and framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict, cast

from precision_time.errors import DataError, JobError, nearest
from precision_time.evaluation.rows import GROUPINGS
from precision_time.hardware.aliases import plain
from precision_time.job.precision import parse_precision
from precision_time.measurements.row import Row
from precision_time.measurements.table import Table


class RowFilters(TypedDict, total=False):
    """Values that a row may have, by column; a column that is left out, or without values, keeps all rows."""

    trust: Iterable[str]
    precision: Iterable[str]
    gpu: Iterable[str]
    model: Iterable[str]
    framework: Iterable[str]


def select(table: Table, filters: RowFilters) -> list[Row]:
    """The rows that have one of the values of every filter.

    A precision may have any of its names. Raises `DataError` for a value that no row has, and when no row passes all
    filters, `TypeError` for an unknown filter.
    """
    wanted = {name: list(values) for name, values in cast("Mapping[str, Any]", filters).items()}
    if unknown := wanted.keys() - RowFilters.__annotations__.keys():
        raise TypeError(f"evaluate has no filter {min(unknown)!r}; it has {', '.join(RowFilters.__annotations__)}")
    rows = list(table.rows)
    for grouping, values in wanted.items():
        if not values:
            continue
        group = GROUPINGS[grouping]
        known = {_plain(grouping, group(row)): group(row) for row in table.rows}
        for value in values:
            if _plain(grouping, value) not in known:
                raise DataError(
                    f"no row of {table.path.name} has {grouping} {value!r}; nearest in the table: "
                    f"{nearest(value, [name for name in known.values() if name]) or 'none, all are empty'}"
                )
        keep = {_plain(grouping, value) for value in values}
        rows = [row for row in rows if _plain(grouping, group(row)) in keep]
    if not rows:
        combined = " and ".join(f"{name} {','.join(values)}" for name, values in wanted.items() if values)
        raise DataError(f"no row of {table.path.name} has {combined} together; leave one of the filters out")
    return rows


def _plain(grouping: str, value: str) -> str:
    """The form in which values are compared: spelling and aliases do not count."""
    if grouping == "precision":
        try:
            return parse_precision(value).label
        except JobError:
            return value.strip().lower()
    return plain(value)
