"""A CSV file of configurations for `precision-time search`: their features, prices and, where known, results.

Column `id` names a configuration; `price_per_hour` or `price_per_s` is its price while it runs, in any currency;
`seconds` is the result of a run, `failed`, or empty. Every other column is a feature. Numbers above 0 enter by their
logarithm, since machines, cores and memory act by ratio; other numbers as they are; text as 0 or 1 for each value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from precision_time.checks import show
from precision_time.errors import DataError
from precision_time.predictors.cloud_search import Configurations, FloatArray
from precision_time.reading import named, read_records

MOST_CONFIGURATIONS = 1_000
MOST_RESULTS = 100
"""Results of one search: the Gaussian process keeps them squared, once for each set of hyperparameters."""
MOST_VALUES = 50
"""Different values of a column of text."""
MOST_FEATURES = 200
SMALLEST, LARGEST = 1e-30, 1e30
COST, TIME = "cost", "time"
OBJECTIVES = (COST, TIME)
FAILED = "failed"
PRICES = {"price_per_hour": 3600.0, "price_per_s": 1.0}
"""Column -> seconds that its price is for."""
_NO_FEATURES = frozenset({"id", "seconds", *PRICES})
Results = dict[str, float | None]
"""Configuration -> seconds of its run, None where it failed."""


@dataclass(frozen=True, slots=True)
class SearchTable:
    """Configurations without known times, and the results that the file has."""

    configurations: Configurations
    results: Results


def read_search_table(path: str | Path, objective: str = COST) -> SearchTable:
    """The configurations in a CSV file. For objective `time` every price is 1. Raises a `DataError`."""
    name = named("table", path)
    rows: list[dict[str, str]] = []
    places: list[str] = []
    for line, row in read_records(path, ("id",)):
        if len(rows) == MOST_CONFIGURATIONS:
            raise DataError(f"{name} has more than {MOST_CONFIGURATIONS:,} configurations; leave some out")
        rows.append({column: cell.strip() for column, cell in row.items()})
        places.append(f"{name} line {line}")
    if not rows:
        raise DataError(f"{name} has no configurations; add a line for each")
    ids = _ids(rows, places)
    features, feature_names = _features(rows, places, name)
    price = np.ones(len(rows)) if objective == TIME else _prices(rows, places, name)
    results: Results = {}
    for row, place in zip(rows, places, strict=True):
        if cell := row.get("seconds", ""):
            results[row["id"]] = result_of(cell, f"{place}: seconds")
    if len(results) > MOST_RESULTS:
        raise DataError(f"{name} has more than {MOST_RESULTS} results; leave some out")
    configurations = Configurations(ids, feature_names, features, price, tuple((each,) for each in ids))
    return SearchTable(configurations, results)


def result_of(text: str, where: str) -> float | None:
    """The seconds that a text states, None for `failed`. Raises a `DataError`."""
    if text.strip().lower() == FAILED:
        return None
    seconds = number(text)
    if seconds is None or seconds <= 0.0:
        raise DataError(f"{where} {show(text)} is no result; give seconds above 0, at most {LARGEST:g}, or {FAILED}")
    return seconds


def number(text: str) -> float | None:
    """The number that a text is, 0 or from `SMALLEST` to `LARGEST` in size, so that products stay finite; else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == 0.0 or SMALLEST <= abs(value) <= LARGEST else None


def _ids(rows: Sequence[dict[str, str]], places: Sequence[str]) -> tuple[str, ...]:
    seen: dict[str, str] = {}
    for row, place in zip(rows, places, strict=True):
        if not row["id"]:
            raise DataError(f"{place} has no id; name every configuration")
        if row["id"] in seen:
            raise DataError(f"{place} has the id {show(row['id'])} again; give every configuration its own")
        seen[row["id"]] = place
    return tuple(seen)


def _prices(rows: Sequence[dict[str, str]], places: Sequence[str], name: str) -> FloatArray:
    columns = [column for column in PRICES if column in rows[0]]
    if len(columns) != 1:
        raise DataError(
            f"{name} has {'both price_per_hour and price_per_s; keep one' if columns else 'no column price_per_hour'}"
            f"{'' if columns else '; add it, or search with --objective time'}"
        )
    (column,) = columns
    prices = []
    for row, place in zip(rows, places, strict=True):
        price = number(row[column])
        if price is None or price <= 0.0:
            raise DataError(f"{place}: {column} {show(row[column])} must be a number from {SMALLEST:g} to {LARGEST:g}")
        prices.append(price / PRICES[column])
    return np.array(prices)


def _features(rows: Sequence[dict[str, str]], places: Sequence[str], name: str) -> tuple[FloatArray, tuple[str, ...]]:
    names: list[str] = []
    columns: list[FloatArray] = []
    for column in rows[0]:
        if column in _NO_FEATURES:
            continue
        cells = [row[column] for row in rows]
        if "" in cells:
            raise DataError(f"{places[cells.index('')]} has no {column or 'value in a column without a name'}; add it")
        values = [number(cell) for cell in cells]
        known = np.array([value for value in values if value is not None])
        if len(known) == len(cells):
            logarithmic = bool(known.min() > 0.0)
            columns.append(np.array([math.log(v) for v in known]) if logarithmic else known)
            names.append(f"log {column}" if logarithmic else column)
            continue
        kinds = sorted(set(cells))
        if len(kinds) > MOST_VALUES:
            raise DataError(
                f"{name} column {show(column)} has {len(kinds)} different texts; give numbers, or leave it out"
            )
        for kind in kinds if len(kinds) > 2 else kinds[1:]:
            columns.append(np.array([float(cell == kind) for cell in cells]))
            names.append(f"{column} {kind}")
    if not names:
        raise DataError(f"{name} has no column that tells configurations apart; add one, for example machines")
    if len(names) > MOST_FEATURES:
        raise DataError(f"{name} has {len(names)} features; leave out some columns, {MOST_FEATURES} are the most")
    return np.column_stack(columns), tuple(names)
