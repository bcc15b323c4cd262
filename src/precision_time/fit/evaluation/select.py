"""Which rows of a table to judge: filters by trust, precision, GPU, model and framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from precision_time.errors import DataError, JobError, nearest
from precision_time.fit.evaluation.accuracy import GROUPINGS
from precision_time.hardware.aliases import plain
from precision_time.job.precision import parse_precision
from precision_time.measurements.row import Row
from precision_time.measurements.table import Table


def select(table: Table, wanted: Mapping[str, Sequence[str]]) -> list[Row]:
    """The rows that have, for every word, one of its values (all rows where it has none).

    A precision may be given by any of its names. Raises `DataError` for a value that no row has, and when no row
    passes all filters.
    """
    rows = list(table.rows)
    for word, values in wanted.items():
        if not values:
            continue
        known = {_plain(word, GROUPINGS[word](row)): GROUPINGS[word](row) for row in table.rows}
        for value in values:
            if _plain(word, value) not in known:
                raise DataError(
                    f"no row of {table.path.name} has {word} {value!r}; nearest in the table: "
                    f"{nearest(value, [name for name in known.values() if name]) or 'none, all are empty'}"
                )
        keep = {_plain(word, value) for value in values}
        rows = [row for row in rows if _plain(word, GROUPINGS[word](row)) in keep]
    if not rows:
        said = " and ".join(f"{word} {','.join(values)}" for word, values in wanted.items() if values)
        raise DataError(f"no row of {table.path.name} has {said} together; leave one of the filters out")
    return rows


def _plain(word: str, value: str) -> str:
    """The form in which values are compared."""
    if word == "precision":
        try:
            return parse_precision(value).label
        except JobError:
            return value.strip().lower()
    return plain(value)
